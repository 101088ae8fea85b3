"""What a pass costs: measured, and put in proportion between what was measured."""

from __future__ import annotations

import pytest
import torch

from playground.decoding import pass_cost
from playground.decoding.cached import CachedModel
from playground.decoding.drafters import build
from playground.decoding.pass_cost import SECONDS, TEXT, PassCost, time_passes
from playground.decoding.sampling import Sampler
from playground.experiments.environment import describe
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.mtp import MtpLayer
from playground.models.store import LoadedPair
from playground.trace import Lane, PassTime, Request


def test_costs_are_in_passes_over_one_token_and_in_proportion_between_two_sizes():
    cost = PassCost([PassTime(1, 0.02), PassTime(4, 0.03), PassTime(16, 0.06)])
    assert [cost(n) for n in (1, 4, 16)] == pytest.approx([1, 1.5, 3])
    assert cost(2) == pytest.approx(1 + 0.5 / 3)
    assert cost(10) == pytest.approx(2.25)
    assert cost(64) == cost(16), "nothing is known beyond"


def test_every_size_is_timed_and_the_quickest_counts(monkeypatch, tiny_llama):
    began_and_ended = [[0, 9, 10, 12, 20, 23, 30, 34], [1, 2, 5, 8, 11, 12, 20, 27]]  # each pass, round by round
    ticks = iter([*began_and_ended[0], SECONDS / 2, *began_and_ended[1], SECONDS])
    monkeypatch.setattr(pass_cost, "Clock", lambda device: lambda: next(ticks))
    monkeypatch.setattr(pass_cost, "SIZES", (1, 4, 16, 64))
    assert time_passes(tiny_llama) == (PassTime(1, 1), PassTime(4, 2), PassTime(16, 1), PassTime(64, 4))
    assert next(ticks, None) is None


def test_a_short_context_is_timed_as_far_as_it_goes(monkeypatch, tiny_llama):
    monkeypatch.setattr(pass_cost, "ROUNDS", 1)
    monkeypatch.setattr(tiny_llama.config, "max_position_embeddings", TEXT + 20)
    times = time_passes(tiny_llama)
    assert [time.tokens for time in times] == [1, 4, 8, 12, 16]
    assert all(time.seconds > 0 for time in times)


def test_a_targets_passes_are_timed_once_when_a_tree_is_asked_for(monkeypatch, tiny_llama, tiny_tokenizer):
    times = (PassTime(1, 0.5), PassTime(4, 0.6))
    timed = iter([times])
    monkeypatch.setattr(build, "time_passes", lambda model: next(timed))
    layer = LoadedDrafter(MtpLayer(tiny_llama, torch.arange(300)), "layer", "made here")
    models = LoadedPair(None, LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "made here"), layer)

    def told_after(way: str):
        target, lane = CachedModel(tiny_llama), Lane("drafted", "tiny", way)
        build.build_drafter(models, lane, target, Sampler(Request("x"), target.device))
        return describe(models, lane).pass_times

    assert [told_after(way) for way in ("mtp", "tree", "composite")] == [(), times, times]
