"""Lanes that take turns over one model write what each writes alone, and their clocks stand still meanwhile."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import pytest

from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.decoding import loop
from playground.decoding.clock import Clock
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.experiments.events import Watch
from playground.experiments.race import Race
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.trace import Trace
from tests.decoding import real
from tests.decoding.graphs import Recorder
from tests.decoding.real import begun, llama, prompts, rounds_of
from tests.decoding.test_static import LONG, WAYS, drafting, without_times

SAMPLED = dict(temperature=0.8, top_p=0.9, repetition_penalty=1.2)


def sharing():
    """Makes static runners that share the caches and captured passes of each model, as those of a backend do."""
    held: dict[object, StaticModel] = {}

    def make(model) -> StaticRunner:
        if model not in held:
            held[model] = StaticModel(model, Graphs("recorded", Recorder()))
        return StaticRunner(held[model], 64)

    return make


EVERY_WAY = (*WAYS[1:], "dflash2")  # but "none"
QUICK = {("eagle3", "eager", "sampled"), ("assistant", "static", "greedy"), ("early exit", "static", "sampled"),
         ("eagle3", "static", "sampled")}  # fmt: skip
EVERY = [
    (way, runners, sampling)
    for way in EVERY_WAY
    for runners in ("eager", "static")
    for sampling in ("greedy", "sampled")
]


@pytest.mark.parametrize(
    ("way", "runners", "sampling"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EVERY],
)
def test_lanes_that_take_turns_write_what_each_writes_alone(monkeypatch, way, runners, sampling):
    """Three lanes: standard decoding, and twice the same drafter with other lookaheads and texts, so that they share
    the weights of target and drafter."""
    model, make = llama(0, 3), EagerRunner if runners == "eager" else sharing()
    monkeypatch.setattr(real, "EagerRunner", make)
    lanes = [("none", LONG, 4), (way, LONG, 4), (way, prompts(2)[1], 2)]
    options = [dict(prompt=prompt, lookahead=k, **(SAMPLED if sampling == "sampled" else {})) for _, prompt, k in lanes]
    drafters = [drafting(each, model, make) for each, *_ in lanes]
    alone = [rounds_of(model, drafter, **more) for drafter, more in zip(drafters, options, strict=True)]
    turns = zip_longest(*(begun(model, drafter, **more) for drafter, more in zip(drafters, options, strict=True)))
    for rounds, apart in zip(zip(*turns, strict=True), alone, strict=True):
        assert [without_times(it) for it in rounds if it] == [without_times(it) for it in apart]


def test_the_clock_stands_still_while_another_lane_decodes(monkeypatch):
    now = [0.0]

    class Counted(Clock):
        """A clock that only passes take time of: a second each."""

        def __call__(self) -> float:
            return now[0] - self._zero

    def forward(self, *args, **kwargs):
        now[0] += 1
        return plain(self, *args, **kwargs)

    plain = EagerRunner.forward
    monkeypatch.setattr(loop, "Clock", Counted)
    monkeypatch.setattr(EagerRunner, "forward", forward)
    lanes = [begun(llama(0, 3), lambda target: NoDrafter(), LONG, max_new_tokens=6) for _ in range(2)]
    for first, second in zip(*lanes, strict=True):
        assert (first.start_s, first.end_s) == (second.start_s, second.end_s)
        assert first.end_s - first.start_s == first.verify_s == 1
        now[0] += 100  # anything between two rounds
    assert first.end_s == 6


GRAMMAR = dict(regex="(the waves )+[a-z]+", max_new_tokens=12, seed=3)
CROSSED = {
    "greedy, eager": (0.0, "token", "off"),
    "block verification, static": (1.2, "block", "on"),
}


@pytest.mark.parametrize(("temperature", "verification", "compiled"), CROSSED.values(), ids=CROSSED)
def test_a_conversation_by_turns_is_the_one_each_lane_has_alone(tiny_folder, temperature, verification, compiled):
    """All answers keep to a grammar. Each lane goes on from the cache of its own first answer."""
    pair = replace(custom_pair(str(tiny_folder), str(tiny_folder), "assistant"), compiled=compiled)
    assisted = assisted_lane(pair, "assistant", 3, verification=verification)
    lanes = [standard_lane(pair), assisted, assisted_lane(pair, "ngram", 2)]

    def conversation(by_turns: bool) -> list[list[Trace]]:
        backend, turns = LocalBackend(ModelStore(), pair, "float32", "cpu"), []
        request = Request("The waves count", temperature=temperature, **GRAMMAR)
        for _ in range(2):
            for lane in lanes:
                backend.warm_up(lane, request, lambda: False)
            race = Race({LOCAL: backend}, request, Watch())
            turns.append(race.run(lanes) if by_turns else [race.run([lane])[0] for lane in lanes])
            said = Message("assistant", turns[-1][0].text)
            request = replace(request, prompt="And then?", history=(*request.turns, said))
        return turns

    for ours, alone in zip(*map(conversation, (True, False)), strict=True):
        for turn, wanted in zip(ours, alone, strict=True):
            assert (turn.schedule, wanted.schedule) == ("by turns", "alone")
            assert [without_times(it) for it in turn.rounds] == [without_times(it) for it in wanted.rounds]
            assert turn.reused == wanted.reused
    assert all(trace.reused.tokens > 0 for trace in ours)
