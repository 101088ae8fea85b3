"""The curve of speed-up over acceptance, from its runs to its report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground import results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.kinds.options import Decoders
from playground.experiments.kinds.sweep import ACCEPTANCE, AcceptanceOptions, sweep_result
from playground.lane import LOCAL, Lane, Request, label, standard_lane, synthetic
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import ALL, SuiteResult, Summary, SweepResult
from playground.trace import Environment
from playground.views import report
from playground.views import sweep as view


def work(folder, **options):
    options = AcceptanceOptions(
        **{"prompts": ("waves and waves", "the sea"), "max_new_tokens": 24, "runs": 1} | options
    )
    return ACCEPTANCE.work(options, Decoders.of(custom_pair(str(folder), None)))[0]


def test_every_rate_runs_beside_the_lane_as_it_is_and_all_write_the_same(tiny_folder):
    asked = work(tiny_folder, drafter="ngram", lookahead=3, policy="constant", rates=(0.0, 1.0))
    backends = {LOCAL: LocalBackend(ModelStore(), asked.pair, "float32", "cpu")}
    result = asked.run(standard_lane(asked.pair), backends, Watch())
    none, every = (point.overall for point in result.points)
    measured = result.suite.of("ngram 3")
    assert none.mean_accepted_length == 1 < every.mean_accepted_length
    assert (none.acceptance_rate, every.acceptance_rate) == (0, 1)
    assert {summary.identical for summary in (measured, none, every)} == {2}
    data = results.to_json(result)
    assert results.from_json(json.loads(json.dumps(data))) == replace(result, suite=replace(result.suite, traces=()))
    older = {"kind": "acceptance", "schema_version": data["schema_version"], "suite": data["suite"]}
    assert results.from_json(older) == results.from_json(data)
    text = report.text(report.of(result))
    assert text.count("synthetic") >= 3 and "Measured:" in text


def test_what_drafts_nothing_and_a_rate_given_twice_are_refused(tiny_folder):
    with pytest.raises(PlaygroundError, match="drafts nothing"):
        work(tiny_folder, drafter="none")
    with pytest.raises(PlaygroundError, match="named once"):
        work(tiny_folder, drafter="ngram", rates=(0.5, 0.5))
    with pytest.raises(PlaygroundError, match="Rates"):
        AcceptanceOptions(rates=(1.5,))


def result_of(speedups) -> SweepResult:
    """A result whose rates 0, 0.5 and 1 have these speed-ups at 1, 2 and 4 tokens a pass; measured at 3."""
    lane = Lane("x", "t", "ngram", policy="constant")
    lanes = (lane, *(synthetic(lane, [rate]) for rate in (0.0, 0.5, 1.0)))
    summaries = tuple(
        Summary(label(it), ALL, 2, length, 0.5, speed, speed, speed, speed, None, 2)
        for it, length, speed in zip(lanes, (3.0, 1.0, 2.0, 4.0), (1.3, *speedups), strict=True)
    )
    nowhere = Environment({}, None, None, None, None, None, (), "2026")
    suite = SuiteResult(nowhere, Request("x"), 1, lanes, ("row",), summaries)
    return sweep_result("acceptance", (0.0, 0.5, 1.0), lanes, suite)


@pytest.mark.parametrize(
    ("speedups", "sentence"),
    [
        ((0.8, 1.2, 2.0), "begins to pay at 1.50 tokens per check"),
        ((1.0, 1.2, 2.0), "above 1 from its first point"),
        ((0.5, 0.6, 0.9), "does not pay here at any rate"),
    ],
)
def test_where_drafting_begins_to_pay(speedups, sentence):
    said = view.findings(result_of(speedups))
    assert any(sentence in each for each in said)
    assert f"The curve has {(speedups[1] + speedups[2]) / 2:.2f}× there" in said[0]


def test_the_measured_point_is_a_star_on_the_curve():
    synthetic, measured = view.curve(result_of((0.8, 1.2, 2.0))).data
    assert (list(synthetic.x), list(synthetic.y)) == ([1.0, 2.0, 4.0], [0.8, 1.2, 2.0])
    assert (list(measured.x), measured.marker.symbol) == ([3.0], "star")
