"""What a pass costs: measured, and put in proportion between what was measured."""

from __future__ import annotations

import pytest
import torch

from playground.decoding import pass_cost
from playground.decoding.drafters.build import build_drafter
from playground.decoding.pass_cost import TEXT, PassCost, bandwidth, time_passes
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.lane import Lane
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from playground.trace import PassTime
from tests.decoding.fakes import FakeModel, counting_law


def test_costs_are_in_passes_over_one_token_and_in_proportion_between_two_sizes():
    cost = PassCost([PassTime(1, 0.02), PassTime(4, 0.03), PassTime(16, 0.06)])
    assert [cost(n) for n in (1, 4, 16)] == pytest.approx([1, 1.5, 3])
    assert cost(2) == pytest.approx(1 + 0.5 / 3)
    assert cost(10) == pytest.approx(2.25)
    assert cost(64) == cost(16), "nothing is known beyond"


def test_a_busy_moment_does_not_make_fewer_tokens_dearer_than_more():
    cost = PassCost([PassTime(1, 0.05), PassTime(4, 0.03), PassTime(8, 0.09), PassTime(16, 0.06)])
    assert [cost(n) for n in (1, 4, 8, 16)] == pytest.approx([1, 1, 2, 2])


def test_sizes_are_timed_in_turn_until_the_time_is_over_and_the_quickest_counts(monkeypatch, tiny_llama):
    took = {1: [0.5, 0.375, 0.5], 4: [0.25], 16: [0.125, 0.25]}  # of each size, its passes
    now, timed = 0.0, []

    def passes(size: int) -> float:
        timed.append(size)
        return took[size].pop(0)

    def forward(self, ids, keep):
        nonlocal now
        if keep > 1 or self.length:  # not the text before them
            now += passes(len(ids))
        self.length += len(ids)

    monkeypatch.setattr(pass_cost, "Clock", lambda device: lambda: now)
    monkeypatch.setattr(pass_cost, "LEAST", (1, 16, 1))
    monkeypatch.setattr(pass_cost, "SIZES", (1, 16, 4))
    monkeypatch.setattr(EagerRunner, "forward", forward)
    monkeypatch.setattr(EagerRunner, "commit", lambda self, length: setattr(self, "length", length))
    monkeypatch.setattr(pass_cost, "SECONDS", 1.8)
    times, steady = time_passes(EagerRunner(tiny_llama), 16)
    assert times == (PassTime(1, 0.375), PassTime(4, 0.25), PassTime(16, 0.125))
    assert not steady, "of no size were two passes alike"
    assert timed == [1, 16, 1, 1, 16, 4]


def test_of_a_slow_target_a_few_sizes_are_timed(monkeypatch, tiny_llama):
    monkeypatch.setattr(pass_cost, "SECONDS", 0.0)
    assert [time.tokens for time in time_passes(EagerRunner(tiny_llama))[0]] == [1, 16, 64]


def test_a_short_context_is_timed_as_far_as_it_goes(monkeypatch, tiny_llama):
    monkeypatch.setattr(pass_cost, "ROUNDS", 1)
    monkeypatch.setattr(tiny_llama.config, "max_position_embeddings", TEXT + 20)
    times, _ = time_passes(EagerRunner(tiny_llama))
    assert [time.tokens for time in times] == [1, 2, 4, 6, 8, 12, 16]
    assert all(time.seconds > 0 for time in times)


@pytest.mark.parametrize(("nodes", "largest"), [(16, 64), (63, 64), (64, 128), (127, 128), (256, 264)])
def test_the_pass_that_a_large_tree_needs_is_timed_too(monkeypatch, nodes, largest):
    monkeypatch.setattr(pass_cost, "SECONDS", 0.0)
    target = FakeModel(counting_law(7), 7)
    assert time_passes(target, nodes + 1)[0][-1].tokens == largest


def test_a_padded_pass_costs_what_it_computes(tiny_llama):
    runner = StaticRunner(StaticModel(tiny_llama, Graphs("as it is", None)), 64)
    cost = PassCost([PassTime(1, 0.02), PassTime(64, 0.04), PassTime(128, 0.08)], runner.computed)
    assert [cost(n) for n in (1, 33, 64, 65, 128)] == pytest.approx([1, 2, 2, 4, 4])
    assert runner.computed(257) == 264, "256 nodes and the token before them"


def test_passes_are_timed_for_a_tree_and_again_where_other_load_disturbed_them(monkeypatch, tiny_llama, tiny_tokenizer):
    times, again = (PassTime(1, 0.5), PassTime(64, 0.6)), (PassTime(1, 0.7), PassTime(64, 0.8))
    quiet = PassTime(1, 0.6), PassTime(64, 0.7)
    timed = iter([(times, False), (again, False), (quiet, True)])
    monkeypatch.setattr(pass_cost, "time_passes", lambda model, most: next(timed))
    layer = LoadedDrafter(MtpLayer(tiny_llama, torch.arange(300)), "layer", "made here")
    models = LoadedPair(
        custom_pair("tiny", "layer", "mtp"), LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "made here"), layer
    )

    def told_after(way: str):
        target, lane = EagerRunner(tiny_llama), Lane("drafted", "tiny", way)
        build_drafter(models, lane, target)
        return models.target.pass_times.get("eager", ())

    ways = "mtp", "tree", "composite", "tree", "tree"
    assert [told_after(way) for way in ways] == [(), times, times, quiet, quiet], "the slower one does not count"


def test_the_bandwidth_of_a_copy_is_measured_once():
    cpu = torch.device("cpu")
    assert bandwidth(cpu) is bandwidth(cpu) and bandwidth(cpu).best > 1e8


@pytest.mark.parametrize(
    ("readings", "best", "steady"),
    [
        ([58, 60, 59, 60, 59], 60, True),
        ([58, 20, 59, 60, 59], 60, True),  # one was disturbed
        ([20, 22, 60, 21, 20] + [22] * 10, 60, False),  # most were, also the next times
        ([20, 22, 25, 21, 20] + [60, 59, 60, 58, 60] + [59] * 5, 60, True),  # the first run was, the next were not
    ],
)
def test_the_best_of_several_readings_of_the_bandwidth_counts_and_how_far_they_agree_is_known(readings, best, steady):
    coming = iter(readings)
    found = pass_cost.Bandwidth(lambda: next(coming))
    for _ in range(5):  # runs
        found.measure()
    assert found.best == best and (found.spread < pass_cost.STEADY) == steady
    assert len(readings) - len([*coming]) == (5 if len(readings) == 5 else 15), "steady ones are not taken again"


def test_the_bandwidth_is_that_of_a_device_that_is_awake(monkeypatch):
    now = 0.0

    def seconds(copy, source):
        nonlocal now
        now += 0.01
        return 0.01 if now > 0.04 else 0.1

    monkeypatch.setattr(pass_cost.time, "perf_counter", lambda: now)
    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    assert bandwidth.__wrapped__(torch.device("cpu")).best == 2 * pass_cost.CPU_BYTES / 0.01
