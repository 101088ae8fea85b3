"""A suite of conversations has one interval for a lane, over conversations, wherever it is shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from playground.experiments.suite import summarise
from playground.lane import Request, label
from playground.metrics import SegmentFigures, pooled
from playground.results import STANDARD, Row, SuiteResult, rank, record
from playground.results.suite import ratio
from playground.views import run_details, suite
from tests.views.test_ranking import LOOKUP, WHERE

OURS, TURNS = label(LOOKUP), 4


def rows(rng: np.random.Generator, conversations: int, spread: float, logged: bool = False) -> list[Row]:
    """Turns of a conversation are alike: most of what its speed-up differs by is common to them. `logged`: each turn is
    a question of its own."""
    found = []
    for i, common in enumerate(rng.normal(0, spread, conversations)):
        for turn in range(TURNS):
            tokens = int(rng.choice([32, 64]))
            base_s = tokens * rng.lognormal(0, 0.05)
            seconds = base_s * np.exp(common + rng.normal(0, spread / 4))
            at = dict(question=i * TURNS + turn, conversation=i) if logged else dict(question=i, turn=turn + 1)
            for lane, s in ((STANDARD, base_s), (OURS, seconds)):
                part = SegmentFigures("answer", tokens, tokens, 0, 0, s, tokens)
                counts = dict(tokens=tokens, passes=tokens, drafting_s=0.0, accepted=0, drafted=0, identical=True)
                parts = part, replace(part, segment="thinking")
                row = Row(category="chat", lane=lane, seconds=s, speedup=base_s / s, segments=parts, **counts, **at)
                found.append(row)
    return found


def test_correlated_turns_leave_the_interval_that_holds_the_truth_as_often_as_it_says():
    rng, spread, suites, hits, by_turns = np.random.default_rng(5), 0.2, 400, 0, 0
    truth = np.exp(-(spread**2) * (1 + 1 / 16) / 2)  # 1 ÷ the mean of lognormal times
    for _ in range(suites):
        drawn = rows(rng, 12, spread)
        low, high = ratio(drawn, OURS).interval
        hits += low <= truth <= high
        each = [[row.timed for row in drawn if row.lane == lane] for lane in (STANDARD, OURS)]
        low, high = pooled(*each).interval
        by_turns += low <= truth <= high
    assert 0.925 <= hits / suites <= 0.975
    assert by_turns / suites < 0.85, "turns as units of their own: the test could see it"


@pytest.mark.parametrize("logged", [False, True])
def test_every_place_has_the_same_interval(logged):
    drawn = rows(np.random.default_rng(1), 10, 0.1, logged)
    result = SuiteResult(WHERE, Request("p"), 1, (LOOKUP,), tuple(drawn), tuple(summarise(drawn)), prompts=("p",) * 10)
    found = next(it for it in rank(drawn) if it.lane == OURS)
    (kept,) = record.of(result).lanes
    summary = result.of(OURS)
    assert (found.speedup, found.interval, found.over) == (summary.overall, summary.interval, summary.over)
    assert (kept.speedup, kept.interval, kept.over) == (summary.overall, summary.interval, summary.over)
    assert summary.over == "prompts" and "over conversations" in suite.setting(result)
    low, high = summary.interval
    segments = {row[-1] for row in run_details.of_suite(result).rows if row[0] != "Standard"}
    assert segments == {f"{summary.overall:.2f}× ({low:.2f} to {high:.2f})"}


def test_few_conversations_of_many_turns_have_no_interval_over_turns():
    drawn = rows(np.random.default_rng(2), 3, 0.1)
    assert ratio(drawn, OURS).interval is None
    result = SuiteResult(WHERE, Request("p"), 1, (LOOKUP,), tuple(drawn), tuple(summarise(drawn)), prompts=("p",) * 3)
    assert record.of(result).lanes[0].interval is None
