"""Layers in fewer operations: the same numbers."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from playground.decoding.runners import buffers
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models.attention import attend_by_groups
from playground.models.cpu.int4 import BlockLinear
from playground.models.cpu.packed import CpuNorm
from playground.models.fused import Beside, FusedLayer, Norm, fuse, fuse_and_join
from tests.decoding import real
from tests.decoding.graphs import Recorder
from tests.decoding.real import FAMILIES, generated, ids_of, llama, prompts, rounds_of
from tests.decoding.test_static import drafting, eagle3_head, network, static_runner
from tests.kernels import Kernels, counted_in

TEXT = list(range(1, 12))
CUDA = torch.device("cuda")
SIZES = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2)  # fmt: skip
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
KIN = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "scaled rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None)),
    "qwen3 moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, mlp_only_layers=[0])),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 8}


def of_kin(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = KIN[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.5 if parameter.dim() == 1 else 0.0, 0.3)
    return model


def fused_for_a_cpu(model: nn.Module) -> None:
    fuse(model, CpuNorm)


def fused_for_cuda(model: nn.Module) -> None:
    fuse_and_join(model, CUDA)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("way", [fused_for_a_cpu, fused_for_cuda])
@pytest.mark.parametrize("name", KIN)
def test_logits_are_those_of_the_model_itself(name, way, grouped):
    model = of_kin(name)
    fused = copy.deepcopy(model)
    way(fused)
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


def replayed(model: PreTrainedModel) -> StaticRunner:
    return static_runner(model, Graphs("recorded", Recorder()))


QUICK = [(EagerRunner, "early exit"), (EagerRunner, "mtp tree"), (replayed, "none")]
LONG = [
    (replayed, "early exit"),
    (replayed, "mtp"),
    (replayed, "mtp tree"),
    (replayed, "eagle3 tree"),
    (replayed, "dflash"),
]


@pytest.mark.parametrize(("make", "way"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in LONG)])
def test_lanes_over_fused_networks_write_what_generate_does(monkeypatch, way, make):
    model = llama(0, 3)
    fused = copy.deepcopy(model)
    attend_by_groups(fused, CUDA)
    fused_for_cuda(fused)
    new_drafter = drafting(way, fused, make)
    if way.startswith("mtp"):
        fused_for_cuda(network("mtp", fused))
    monkeypatch.setattr(real, "EagerRunner", make)
    for prompt in prompts(2):
        assert ids_of(rounds_of(fused, new_drafter, prompt)) == generated(model, prompt)


@pytest.mark.parametrize("way", [fused_for_a_cpu, fused_for_cuda])
@pytest.mark.parametrize("norm_before_residual", [True, False])
def test_an_eagle3_head_drafts_as_before(way, norm_before_residual):
    """Its layer reads embedding and hidden state, and has two norms before attention."""
    head = eagle3_head(llama(0, 3))
    layer = head.base.layers[0]
    layer.norm_before_residual = norm_before_residual
    torch.nn.init.normal_(layer.hidden_norm.weight)
    fused = copy.deepcopy(head)
    way(fused)
    assert isinstance(fused.base.layers[0], FusedLayer)
    ids, hidden = torch.tensor([[1, 2, 3, 4]]), torch.randn(1, 4, head.fc.in_features)
    with torch.inference_mode():
        expected, seen = (each.logits(each(ids, hidden, each.new_cache())) for each in (head, fused))
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)


def test_rows_of_a_batch_with_padding():
    model = of_kin("llama")
    fused = copy.deepcopy(model)
    fused_for_cuda(fused)
    ids, mask = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with torch.inference_mode():
        expected, seen = (each(ids, attention_mask=mask).logits for each in (model, fused))
    torch.testing.assert_close(seen[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)


def test_other_architectures_stay_as_they_are():
    for family in FAMILIES.keys() - {"llama"}:
        network = FAMILIES[family](0, 2)
        fused_for_cuda(network)
        assert not any(isinstance(module, FusedLayer | Norm) for module in network.modules())


def test_layers_of_other_weights_than_torchs_own_stay_as_they_are():
    class Quantised(nn.Linear):
        """As bitsandbytes' layers are subclasses of torch's."""

    model = of_kin("llama")
    model.model.layers[1].mlp.down_proj = Quantised(48, 32, bias=False)
    fused_for_cuda(model)
    assert not any(isinstance(module, FusedLayer | Norm) for module in model.modules())


def test_weights_are_joined_layer_by_layer(monkeypatch):
    """Of an 8B model there is no room for two copies: what a layer was loaded with is gone once the layer is joined."""
    model = of_kin("llama")
    alive = weakref.WeakSet(p for p in model.parameters() if p.dim() > 1)
    whole, most = sizes(alive), 0
    join = Beside.joined

    def watched(self):
        nonlocal most
        [one] = join(self)
        alive.add(one.weight)
        most = max(most, sizes(alive))
        return [one]

    monkeypatch.setattr(Beside, "joined", watched)
    gc.disable()  # nothing may wait for it
    try:
        fused_for_cuda(model)
        assert sizes(alive) == whole
        assert whole < most <= whole + 2 * 48 * 32  # gate and up projection of one layer
    finally:
        gc.enable()


def sizes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


@pytest.mark.parametrize("norm", [Norm, CpuNorm])
def test_a_norm_of_tiny_values_keeps_its_epsilon(norm):
    own = of_kin("llama").model.norm
    for scale in (1e-4, 1.0, 1e4):
        x = scale * torch.randn(3, 32)
        torch.testing.assert_close(norm(own.weight, own.variance_epsilon)(x), own(x))


NARROW = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=1,
              head_dim=8)  # fmt: skip
BUDGETS = {
    "Llama 3.2 1B": (350, LlamaForCausalLM, LlamaConfig(**NARROW, num_hidden_layers=16, tie_word_embeddings=True)),
    "Qwen3 8B": (900, Qwen3ForCausalLM, Qwen3Config(**NARROW, num_hidden_layers=36)),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_captured_pass_launches_no_more_kernels_than_its_budget(name, monkeypatch):
    """Which is a matter of layers, not of their width."""
    budget, build, config = BUDGETS[name]
    model = build(config).bfloat16().eval()
    attend_by_groups(model, CUDA)
    fused_for_cuda(model)
    monkeypatch.setattr(buffers, "WIDTHS", (1, 8))
    passes: list[Kernels] = []
    StaticRunner(StaticModel(model, Graphs("counted", counted_in(passes))), 64, 8).prepare()
    of_one_token, _, of_eight, _ = [kernels.total for kernels in passes]  # each followed by the move of a branch
    assert budget / 2 < of_one_token < of_eight <= budget


def test_layers_that_are_stored_in_different_ways_stay_beside_each_other():
    whole, blocks = nn.Linear(64, 16, bias=False), torch.zeros(16, 2, 20, dtype=torch.uint8)
    assert len(Beside(whole, BlockLinear(blocks, None)).joined()) == 2
    of_two = Beside(BlockLinear(blocks[..., :18], None), BlockLinear(blocks, None), BlockLinear(blocks, None)).joined()
    assert [part.out_features for part in of_two] == [16, 32]
    (one,) = Beside(whole, nn.Linear(64, 8, bias=False)).joined()
    assert one.weight.shape == (24, 64)
    x = torch.randn(2, 64)
    assert torch.equal(Beside(whole, whole)(x), torch.cat([whole(x), whole(x)], dim=-1))
