"""A cache with room holds what transformers' own holds, whatever is appended and dropped."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from playground.decoding.runners.cache import LEAST, GrowingLayer, growing_cache

STEPS = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 250)), min_size=1, max_size=8)  # appended, then dropped


@given(STEPS)
def test_it_holds_what_a_cache_that_copies_holds(steps):
    torch.manual_seed(0)
    own, plain = GrowingLayer(), DynamicLayer()
    for appended, dropped in steps:
        new = [torch.randn(1, 2, appended, 4) for _ in "kv"]
        for ours, theirs in zip(own.update(*new), plain.update(*new), strict=True):
            assert torch.equal(ours, theirs)
        for layer in (own, plain):
            layer.crop(-min(dropped, layer.get_seq_length() - 1))
        assert own.get_seq_length() == plain.get_seq_length()


def test_an_entry_is_written_where_it_stays_until_the_room_is_full():
    layer = GrowingLayer()
    layer.update(torch.zeros(1, 1, 10, 4), torch.zeros(1, 1, 10, 4))
    at = layer.keys.data_ptr()
    for _ in range(LEAST):
        layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
        layer.crop(-1)
        layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
        assert layer.keys.data_ptr() == at
    layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
    assert layer.keys.data_ptr() != at


def test_sequences_that_are_done_leave_a_batch():
    cache = growing_cache(DynamicCache())
    cache.layers = [GrowingLayer(), GrowingLayer()]
    rows = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 5, 2)
    cache.update(rows, rows, 0)
    cache.batch_select_indices(torch.tensor([0, 2]))  # the second layer has not been used
    keys, _ = cache.update(rows[:2, :, :1] * 0, rows[:2, :, :1] * 0, 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 0]]
