"""The drafter's confidence against what was accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playground import export, metrics
from playground.trace import Comparison, DraftToken
from playground.views import report, run_details
from playground.views import run_details as calibration
from tests.examples import drafted_round, plain_round, trace, tree_round


def judged(*forecasts):
    """A round of draft tokens with these q and decisions, as children of the text."""
    drafted = tuple(
        DraftToken(i, "x", False, q, 0.5, 0.5, decision, parent=-1) for i, (q, decision) in enumerate(forecasts)
    )
    return replace(plain_round(1), drafted=drafted)


def test_the_figures_are_those_of_their_definitions():
    q = [(0.95, "accepted"), (0.95, "accepted"), (0.95, "rejected"), (0.25, "rejected"), (0.15, "unverified")]
    (found, at_1) = metrics.calibration(trace([judged(*q)]))
    assert (found.position, at_1.position, found.tokens) == (None, 1, 4)
    assert found.q == pytest.approx((3 * 0.95 + 0.25) / 4)
    assert found.accepted == 0.5
    assert found.brier == pytest.approx((2 * 0.05**2 + 0.95**2 + 0.25**2) / 4)
    assert found.ece == pytest.approx(3 / 4 * (0.95 - 2 / 3) + 1 / 4 * 0.25)
    assert [(each.low, each.tokens) for each in found.bins] == [(0.2, 1), (0.9, 3)]
    assert found.bins[1].accepted == pytest.approx(2 / 3)


def test_a_perfect_forecast_has_no_error_and_a_q_of_1_is_in_the_last_bin():
    (found, _) = metrics.calibration(trace([judged((1.0, "accepted"), (0.0, "rejected"))]))
    assert (found.ece, found.brier) == (0, 0)
    assert [each.low for each in found.bins] == [0.0, 0.9]


def test_positions_count_tokens_of_a_tree_by_depth_and_add_up():
    rounds = [drafted_round([1, 2, 9], accepted=2, own=3), tree_round()]
    whole, *by_position = metrics.calibration(trace(rounds))
    assert sum(each.tokens for each in by_position) == whole.tokens
    assert [each.position for each in by_position] == [1, 2, 3]


def test_a_trace_without_a_q_has_none():
    assert metrics.calibration(trace([plain_round(1)])) == []
    assert metrics.calibration(trace([judged((None, "accepted"))])) == []
    assert calibration.tables([trace([plain_round(1)])]) == []


def test_tables_details_and_export_have_it():
    other = trace([drafted_round([1, 2, 9], accepted=2, own=3)], "ngram")
    comparison = Comparison((trace([plain_round(6)]), other))
    by_position, by_q = report.of(comparison).folded
    assert [row[1:3] for row in by_position.rows] == [("all", "3"), ("1", "1"), ("2", "1"), ("3", "1")]
    assert by_q.rows == ((other.lane.name, "0.8 to 0.9", "3", "0.80", "67%"),)
    assert "Brier score" in dict(run_details.details(*metrics.ranked(comparison)))["Confidence"]
    assert export.to_json(comparison)["lanes"][1]["calibration"][0]["tokens"] == 3
    assert "Reliability of q" in report.text(report.of(comparison), folded=True)
