from __future__ import annotations

import torch
from transformers import DynamicCache, MixtralConfig, MixtralForCausalLM

from playground.models.networks.heads import ParallelHeads
from playground.models.sizing import cache_bytes, experts, weights_bytes
from playground.trace import Experts
from tests.decoding.gemma4 import gemma4_target


def test_a_model_is_counted_once_however_often_a_weight_is_named(tiny_llama):
    parameters = {id(p): p.numel() * 4 for p in tiny_llama.parameters()}
    buffers = sum(b.numel() * b.element_size() for b in tiny_llama.buffers())
    assert weights_bytes(tiny_llama) == sum(parameters.values()) + buffers


def test_what_a_drafter_shares_with_its_target_is_the_targets(tiny_llama):
    draft_ids = torch.arange(0, 100)
    heads = ParallelHeads(tiny_llama, draft_ids, 2)
    own = sum(p.numel() * 4 for p in heads.parameters()) + 100 * 8 + 100 * tiny_llama.config.hidden_size * 4
    assert weights_bytes(heads, shared_with=tiny_llama) == own
    assert weights_bytes(tiny_llama, shared_with=tiny_llama) == 0


def test_a_cache_grows_with_its_text(tiny_llama):
    cache = DynamicCache(config=tiny_llama.config)
    assert cache_bytes(cache) == 0
    with torch.inference_mode():
        tiny_llama(input_ids=torch.ones(1, 7, dtype=torch.long), past_key_values=cache)
    config = tiny_llama.config
    head = config.hidden_size // config.num_attention_heads
    assert cache_bytes(cache) == 2 * config.num_hidden_layers * config.num_key_value_heads * 7 * head * 4


def test_the_experts_of_a_mixture_are_known_however_its_config_names_them(tiny_llama):
    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=6, num_experts_per_tok=2,
    )  # fmt: skip
    assert experts(MixtralForCausalLM(config)) == Experts(6, 2, 2 * 6 * 3 * 16 * 8 * 4)
    found = experts(gemma4_target("moe", 32))
    assert (found.count, found.per_token) == (4, 2) and found.weights > 0
    assert experts(tiny_llama) is None
