from __future__ import annotations

import dataclasses

from playground.trace import Comparison, Memory
from playground.views import drafters
from tests.examples import drafted_round, plain_round, trace

PLAIN = trace([plain_round(i, start_s=0.1 * i) for i in range(4)])
FAST = trace([drafted_round([0, 1, 2], accepted=3, own=3)], drafter="mtp", name="Fast")
SLOW = trace([drafted_round([9], accepted=0, own=i, start_s=0.2 * i) for i in range(4)], drafter="ngram", name="Slow")


def test_the_fastest_comes_first_and_a_loss_is_said():
    best, lost = drafters.rows(PLAIN, [SLOW, FAST])
    assert (best.lane, best.speedup, best.tokens_per_pass, best.cost, best.best) == (
        "Fast",
        "2.00×",
        "4.00",
        "2.00",
        True,
    )
    assert (best.acceptance, best.output, best.note) == ("100%", "identical", "")
    assert (lost.lane, lost.speedup, lost.best, lost.note) == ("Slow", "0.50×", False, drafters.LOST)


def test_nobody_is_best_where_everybody_lost():
    assert not any(row.best for row in drafters.rows(PLAIN, [SLOW]))


def test_a_lane_that_was_not_reached_comes_last_and_says_so():
    unreached = dataclasses.replace(trace([], drafter="tree", name="Late"), finish="stopped")
    rows = drafters.rows(PLAIN, [unreached, SLOW])
    assert [row.lane for row in rows] == ["Slow", "Late"]
    assert (rows[1].speedup, rows[1].output, rows[1].note) == ("–", "–", "not run: stopped before")


def test_other_text_and_memory():
    other = trace([plain_round(0), plain_round(7, start_s=0.1)], drafter="ngram", name="Other")
    (row,) = drafters.rows(PLAIN, [dataclasses.replace(other, memory=Memory(3_000_000, 1_000_000, 0, 0))])
    assert (row.output, row.memory) == ("differs from token 2", "4 MB")


def test_a_comparison_of_many_lanes_is_seen_two_at_a_time():
    comparison = Comparison((PLAIN, SLOW, FAST), repeats=((PLAIN, SLOW, FAST),))
    assert comparison.beside("Fast") == Comparison((PLAIN, FAST), repeats=((PLAIN, FAST),))
