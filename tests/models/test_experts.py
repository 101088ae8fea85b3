"""Mixtures of experts that can be captured: the same numbers, and no waits."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from benchmarks import waits
from playground.decoding.drafters.mtp import branches
from playground.decoding.runners import static_model
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models.fused import prepare_experts
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.graphs import Recorder
from tests.decoding.real import llama
from tests.native import native_places, save_native  # noqa: F401 (a fixture)

SIZES = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, num_experts_per_tok=2, initializer_range=0.4)  # fmt: skip
OWN = dict(moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1)
LATENT = dict(kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, v_head_dim=6, qk_nope_head_dim=8)
MIXTURES = {
    "qwen3": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=16)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    "glm": lambda: Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **OWN, n_routed_experts=16)),
    "deepseek": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(**SIZES | dict(num_key_value_heads=4), **OWN, **LATENT, n_routed_experts=16)
    ),
}
GROUPED = {"_grouped_mm", "transformers::grouped_mm_fallback"}  # which wait on most GPUs


@pytest.fixture(params=MIXTURES)
def model(request) -> PreTrainedModel:
    torch.manual_seed(0)
    return MIXTURES[request.param]().eval()


@pytest.mark.parametrize("tokens", [1, 3, 64, 70])  # copied weights, copied or all, all, never captured
def test_logits_are_those_of_transformers_own_experts(model, tokens):
    prepared = copy.deepcopy(model)
    prepare_experts(prepared.modules())
    ids = [1 + i % 38 for i in range(tokens)]
    expected, seen = (EagerRunner(each).forward(ids, keep=tokens) for each in (model, prepared))
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)


def test_all_widths_are_captured(model, monkeypatch):
    monkeypatch.setattr(waits, "OPERATIONS", waits.OPERATIONS | GROUPED)
    with monkeypatch.context() as patch:
        patch.setattr(static_model, "prepare_experts", lambda modules: None)
        assert "not permitted" in captured(model).failure, "as transformers sets it"
    assert not captured(model).failure


def captured(model: PreTrainedModel) -> Graphs:
    graphs = Graphs("recorded", Recorder())
    StaticRunner(StaticModel(model, graphs), 64).prepare()
    return graphs


def test_a_model_without_experts_stays_as_it_is():
    model = llama(0, 1)
    before = model.config._experts_implementation
    prepare_experts(model.modules())
    assert model.config._experts_implementation == before


def test_a_layer_of_the_targets_own_is_captured_beside_it(native_places, tiny_tokenizer, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(waits, "OPERATIONS", waits.OPERATIONS | GROUPED)
    pair = custom_pair(str(save_native("glm lite", 1, tmp_path / "tiny", tiny_tokenizer)), None, "mtp")
    models = ModelStore().get(pair, drafter="mtp", dtype="float32", device="cpu", progress=lambda step: None)
    graphs = Graphs("recorded", Recorder())
    target = StaticRunner(StaticModel(models.target.model, graphs), 64)
    drafter = branches(models.drafting.network, target)
    target.prepare()
    assert not graphs.failure
    target.forward([3, 1, 4, 1], keep=1)
    target.commit(4)
    drafter.commit()
    with torch.inference_mode():
        assert drafter.root([3, 1, 4, 1, 5]) is not None
