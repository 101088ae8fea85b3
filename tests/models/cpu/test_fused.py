"""Llama layers in fewer operations: the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from playground.decoding.runners.eager import EagerRunner
from playground.models.attention import attend_by_groups
from playground.models.cpu.blocks import BlockLinear
from playground.models.cpu.fused import Beside, FusedLayer, Norm, fuse
from tests.decoding.real import FAMILIES

TEXT = list(range(1, 12))


def llama(**settings) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, **settings)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.5 if parameter.dim() == 1 else 0.0, 0.3)
    return model


@pytest.mark.parametrize("settings", [{}, {"attention_bias": True, "mlp_bias": True}], ids=["plain", "biases"])
@pytest.mark.parametrize("grouped", [True, False])
def test_logits_are_those_of_the_model_itself(settings, grouped):
    model = llama(**settings)
    fused = copy.deepcopy(model)
    fuse(fused)
    assert all(isinstance(layer, FusedLayer) for layer in fused.model.layers)
    for each in (model, fused):
        if grouped:
            attend_by_groups(each, torch.device("cpu"))
        runner = EagerRunner(each)
        seen = [runner.forward(TEXT, keep=3)]
        runner.commit(len(TEXT))
        seen.append(runner.forward([3, 4, 5, 6], keep=4, tree=[-1, 0, 0]))
        runner.commit(len(TEXT) + 1, [1])
        seen.append(runner.forward([7], keep=1))
        each.seen = torch.cat(seen)
    torch.testing.assert_close(fused.seen, model.seen, rtol=1e-4, atol=1e-5)


def test_rows_of_a_batch_with_padding():
    model = llama()
    fused = copy.deepcopy(model)
    fuse(fused)
    ids, mask = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with torch.inference_mode():
        expected, seen = (each(ids, attention_mask=mask).logits for each in (model, fused))
    torch.testing.assert_close(seen[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)


def test_other_architectures_stay_as_they_are():
    for family in FAMILIES.keys() - {"llama"}:
        network = FAMILIES[family](0, 2)
        fuse(network)
        assert not any(isinstance(module, FusedLayer) for module in network.modules())


def test_a_norm_of_tiny_values_keeps_its_epsilon():
    norm = llama().model.norm
    for scale in (1e-4, 1.0, 1e4):
        x = scale * torch.randn(3, 32)
        torch.testing.assert_close(Norm(norm)(x), norm(x))


def test_layers_that_are_stored_in_different_ways_stay_beside_each_other():
    whole, blocks = nn.Linear(64, 16, bias=False), torch.zeros(16, 2, 20, dtype=torch.uint8)
    assert Beside(whole, BlockLinear(blocks, None)).joined() is None
    assert Beside(BlockLinear(blocks[..., :18], None), BlockLinear(blocks, None)).joined() is None
    assert Beside(whole, nn.Linear(64, 8, bias=False)).joined().weight.shape == (24, 64)
    x = torch.randn(2, 64)
    assert torch.equal(Beside(whole, whole)(x), torch.cat([whole(x), whole(x)], dim=-1))
