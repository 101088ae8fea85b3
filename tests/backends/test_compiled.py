"""The switch between eager and compiled lanes is a property of the backend: both lanes are run the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playground.backends.local import LocalBackend
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.load import LoadedModel
from playground.models.store import ModelStore
from playground.presets import Pair, custom_pair


def target_of(store: ModelStore, pair: Pair) -> LoadedModel:
    return store.get(pair, drafter="none", dtype="float32", device="cpu", progress=lambda step: None).target


@pytest.mark.parametrize("drafter", ["ngram", "early-exit"])
def test_both_lanes_run_alike_and_write_what_eager_lanes_write(drafter, tiny_folder):
    pair, store = custom_pair(str(tiny_folder), None, drafter, 1), ModelStore()
    request = Request("The lighthouse keeper counts the waves.", max_new_tokens=12)
    lanes = [standard_lane(pair), assisted_lane(pair)]

    def compared(compiled: str):
        backends = {LOCAL: LocalBackend(store, replace(pair, compiled=compiled), "float32", "cpu")}
        return run(lanes, request, backends, Watch())

    auto, on = compared("auto"), compared("on")
    assert [trace.token_ids for trace in on.lanes] == [trace.token_ids for trace in auto.lanes]
    assert {trace.environment.runner for trace in auto.lanes} == {"eager"}
    (runner,) = {trace.environment.runner for trace in on.lanes}
    assert runner.startswith("static ")
    assert all(trace.environment.compile_s is None for trace in (*auto.lanes, *on.lanes))
    kept = target_of(store, pair).static["target"]
    compared("on")
    assert target_of(store, pair).static["target"] is kept
