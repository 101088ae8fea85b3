"""Mixtures of experts: captured where nothing waits for the device, eager elsewhere."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from benchmarks import waits
from playground.decoding.drafters.mtp import branches
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import groups_on_device, why_eager
from playground.decoding.runners.static_model import StaticModel
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.gemma4 import gemma4_target
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
    "gpt oss": lambda: GptOssForCausalLM(GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, sliding_window=6)),
    "gemma4": lambda: gemma4_target("moe", 40),
}
GROUPED = {"_grouped_mm", "transformers::grouped_mm_fallback"}  # which wait on most GPUs


@pytest.fixture(params=MIXTURES)
def model(request) -> PreTrainedModel:
    torch.manual_seed(0)
    return MIXTURES[request.param]().eval()


def test_all_widths_are_captured_where_torch_groups_tokens_on_the_device(model):
    """Elsewhere the grouped product waits for the device, which no capture may."""
    graphs = captured(model)
    assert not graphs.failure and graphs.seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waits, "OPERATIONS", waits.OPERATIONS | GROUPED)
        assert "not permitted" in captured(model).failure


def test_mixtures_are_run_eagerly_where_their_experts_wait(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index, 0))
    assert "experts" in why_eager(model) and not why_eager(llama(0, 1))
    cuda = [torch.device("cuda", major) for major in (8, 9, 10, 12)]
    assert [groups_on_device(device, torch.bfloat16) for device in cuda] == [False, True, True, False]
    assert not groups_on_device(cuda[1], torch.float16)


def captured(model: PreTrainedModel) -> Graphs:
    graphs = Graphs("recorded", Recorder())
    StaticRunner(StaticModel(model, graphs), 64).prepare()
    return graphs


def test_a_layer_of_the_targets_own_is_captured_beside_it(native_places, tiny_tokenizer, tmp_path):  # noqa: F811
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
