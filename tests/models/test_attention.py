"""Attention over grouped heads gives what transformers' own gives, and is set where it pays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from playground.decoding.runners.buffers import additive
from playground.decoding.runners.eager import EagerRunner
from playground.models.attention import GROUPED, attend_by_groups, grouped_sdpa
from playground.models.load import Format, load
from tests.decoding.real import FAMILIES

TEXT = list(range(1, 12))
PASSES = {
    "prompt": ([5, 6, 7], None),
    "token": ([5], None),
    "chain": ([5, 6, 7], None),
    "tree": ([5, 6, 7], [-1, 0, 0]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", PASSES)
def test_logits_are_those_of_transformers_own_attention(family, kind):
    model = FAMILIES[family](0, 3)
    ids, branches = PASSES[kind]

    def logits() -> torch.Tensor:
        target = EagerRunner(model)
        if kind != "prompt":
            target.forward(TEXT, keep=1)
            target.commit(len(TEXT))
        if branches:
            return target.forward([1, *ids], keep=4, tree=branches)
        return target.forward(ids, keep=len(ids))

    assert model.config._attn_implementation == "sdpa"
    expected = logits()
    attend_by_groups(model, torch.device("cpu"))
    assert model.config._attn_implementation == GROUPED
    torch.testing.assert_close(logits(), expected, rtol=1e-4, atol=1e-5)


def test_trees_of_one_size_do_not_see_through_each_others_masks():
    def logits(implementation: str) -> list[torch.Tensor]:
        model = FAMILIES["llama"](0, 3)
        model.set_attn_implementation(implementation)
        target = EagerRunner(model)
        target.forward(TEXT, keep=1)
        target.commit(len(TEXT))
        seen = []
        for branches in ([-1, 0, 0], [-1, -1, 1], [-1, 0, 1]):
            seen.append(target.forward([1, 5, 6, 7], keep=4, tree=branches))
            target.commit(len(TEXT))
        return seen

    torch.testing.assert_close(logits(GROUPED), logits("sdpa"), rtol=1e-4, atol=1e-5)


def attended(attend: Callable[..., tuple[Tensor, None]], mask: Tensor, key_heads: int, positions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, n, 8, generator=generator)
        for heads, n in ((4, positions), (key_heads, 7), (key_heads, 7))
    )
    module = SimpleNamespace(num_key_value_groups=4 // key_heads, is_causal=True, training=False)
    return attend(module, query, key, value, mask, scaling=0.5)[0]


def test_layers_of_different_key_heads_share_a_mask():
    mask = additive(torch.ones(3, 7, dtype=torch.bool).tril(4), torch.float32)
    for key_heads in (2, 4, 1, 2):
        expected = attended(sdpa_attention_forward, mask, key_heads, 3)
        torch.testing.assert_close(attended(grouped_sdpa, mask, key_heads, 3), expected)


def test_a_mask_that_is_the_same_for_all_positions_serves_any_number_of_them():
    mask = torch.zeros(1, 1, 1, 7)  # as Gemma4Assistant's
    for positions in (1, 5, 3):
        expected = attended(sdpa_attention_forward, mask, 2, positions)
        torch.testing.assert_close(attended(grouped_sdpa, mask, 2, positions), expected)


def test_a_mask_that_differs_between_heads_is_left_to_transformers():
    mask = torch.randn(1, 4, 3, 7)
    expected = attended(sdpa_attention_forward, mask, 2, 3)
    torch.testing.assert_close(attended(grouped_sdpa, mask, 2, 3), expected)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_attend_so_on_a_cpu_and_on_cuda(device):
    model = FAMILIES["llama"](0, 2)
    attend_by_groups(model, torch.device(device))
    assert model.config._attn_implementation == GROUPED


def test_a_loaded_model_attends_so(tiny_folder):
    model = load(str(tiny_folder), Format(torch.float32, torch.device("cpu")), lambda step: None).model
    assert model.config._attn_implementation == GROUPED


@pytest.mark.parametrize(("device", "own"), [("mps", "sdpa"), ("cpu", "eager")])
def test_other_devices_and_other_attention_are_left_as_they_are(device, own):
    model = FAMILIES["llama"](0, 2)
    model.set_attn_implementation(own)
    attend_by_groups(model, torch.device(device))
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("cached", [20, 127, 250, 300])
def test_a_tokens_result_is_the_same_in_passes_of_any_width(cached):
    torch.manual_seed(0)
    key, value = (torch.randn(1, 3, cached + 12, 64) for _ in range(2))
    query = torch.randn(1, 9, 12, 64)
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True, training=False)

    def last(positions: int) -> Tensor:
        """Of the token that follows `cached` + 5 others, with so many tokens after it."""
        whole, end = query[:, :, 5 : 5 + positions], cached + 5 + positions
        sees = torch.ones(positions, end, dtype=torch.bool).tril(cached + 5)[None, None] if positions > 1 else None
        return grouped_sdpa(module, whole, key[:, :, :end], value[:, :, :end], sees, scaling=0.125)[0][:, 0]

    alone = last(1)
    for positions in (2, 3, 5, 7):
        torch.testing.assert_close(last(positions), alone, rtol=0, atol=1e-6)  # 0 with the MKL of an x86 CPU
