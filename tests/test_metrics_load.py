"""The figures of a load test and of a server that serves traffic, on numbers that can be checked by hand."""

from __future__ import annotations

import dataclasses

import pytest

from playground import results
from playground.lane import Lane, Request
from playground.metrics.load import Answered, Counts, Level, Limits, Reading, crossing, gains, is_good, points, window
from playground.results import LoadResult
from playground.trace import Environment
from playground.views import load, report
from playground.views import monitor as serving

LIMITS = Limits(ttft_s=0.5, tpot_s=0.1)


def answered(level: int, lane: str, number: int, ttft: float = 0.2, tpot: float = 0.05, sent: float = 0.0, **more):
    """An answer of 1 + 2 + 2 tokens."""
    arrivals = ((ttft, 1), (ttft + 2 * tpot, 2), (ttft + 4 * tpot, 2))
    return Answered(Level(concurrency=level), lane, number, 0, sent, arrivals, **more)


def result_of(rows, *lanes: str) -> LoadResult:
    """A load test of these lanes, the baseline first."""
    where = Environment({"vllm": "0.32"}, None, None, "a server", None, None, (), "")
    levels = tuple(dict.fromkeys(row.level for row in rows))
    return LoadResult(
        tuple(where for _ in lanes), Request("x"), tuple(Lane(name, "model") for name in lanes), levels, 8, 0, LIMITS,
        tuple(rows), tuple(points(rows, LIMITS)), tuple(gains(rows, lanes[0])),
    )  # fmt: skip


def test_the_figures_of_one_request():
    row = answered(1, "a", 0)
    assert (row.tokens, row.ttft_s) == (5, 0.2)
    assert row.latency_s == pytest.approx(0.4)
    assert row.tpot_s == pytest.approx(0.05), "vLLM's TPOT, AIPerf's inter-token latency"
    assert row.chunk_gaps_s == pytest.approx([0.1, 0.1]), "vLLM's inter-token latency"


def test_the_figures_of_a_level():
    rows = [
        answered(2, "a", 0, drafted=4, accepted=2),
        answered(2, "a", 1, ttft=0.6, sent=0.4, drafted=4, accepted=4),
        Answered(Level(concurrency=2), "a", 2, 0, 0.5, ((0.1, 1),), error="broke off"),
    ]
    (point,) = points(rows, LIMITS)
    assert (point.requests, point.failed) == (2, 1)
    assert point.duration_s == pytest.approx(1.2)
    assert point.tokens_per_s == pytest.approx(10 / 1.2)
    assert point.per_user == pytest.approx(20)
    assert point.goodput == pytest.approx(1 / 1.2), "the second waits too long, the third failed"
    assert (point.ttft.p50, point.acceptance_rate) == (pytest.approx(0.4), 0.75)


def test_a_request_that_is_too_slow_in_either_way_is_not_good():
    assert is_good(answered(1, "a", 0), LIMITS)
    assert not is_good(answered(1, "a", 0, ttft=0.51), LIMITS)
    assert not is_good(answered(1, "a", 0, tpot=0.11), LIMITS)


def test_the_speed_up_is_of_the_requests_that_both_lanes_answered():
    rows = []
    for level, tpot in ((1, 0.025), (4, 0.1)):
        rows += [answered(level, "base", n, ttft=0.05, tpot=0.05) for n in range(9)]
        rows += [answered(level, "spec", n, ttft=0.05, tpot=tpot) for n in range(8)]
    found = gains(rows, "base")
    assert [(gain.level.concurrency, gain.requests) for gain in found] == [(1, 8), (4, 8)]
    assert [gain.speedup for gain in found] == pytest.approx([0.25 / 0.15, 0.25 / 0.45])
    assert found[0].interval == pytest.approx((0.25 / 0.15, 0.25 / 0.15))
    at = crossing(found)
    assert 1 < at < 4
    assert crossing(found[:1]) is None

    def verdict(rows) -> str:
        return load.findings(result_of(rows, "base", "spec"))[0]

    assert verdict(rows) == f"Speculation stops paying at about {at:.1f} users."
    assert verdict(rows[:17]) == "Speculation pays at these levels: 1."
    assert verdict(rows[:16]) == "Too few requests to tell: send 8 or more of each level."
    assert verdict(rows[17:]) == "At none of these levels was speculation clearly faster."


def test_failed_requests_are_counted_in_words():
    rows = [answered(1, "a", 0), Answered(Level(concurrency=1), "a", 1, 0, 0.0, (), error="The server hangs.")]
    result = result_of(rows, "a")
    assert any("1 of 2" in said and "The server hangs." in said for said in load.findings(result))
    assert load.by_level(result.points).rows[0][:3] == ("a", "1", "1, 1 failed")
    assert results.from_json(results.to_json(result)) == result


def test_a_level_without_an_answer_has_no_figures():
    (point,) = points([Answered(Level(rate=0.5), "a", 0, 0, 0.0, (), error="x")], LIMITS)
    assert (point.requests, point.failed, point.tokens_per_s, point.ttft) == (0, 1, 0.0, None)


def test_the_charts_have_a_line_for_each_lane():
    names = "base", "<b>spec"
    times = {(1, names[0]): 0.01, (1, names[1]): 0.005, (4, names[0]): 0.04, (4, names[1]): 0.04}
    rows = [answered(level, lane, n, tpot=tpot) for (level, lane), tpot in times.items() for n in range(8)]
    rows += [answered(9, name, n, tpot=tpot) for name, tpot in zip(names, (0.05, 0.06), strict=True) for n in range(8)]
    result = result_of(rows, *names)
    pareto, speedup, latency = load.pareto(result), load.speedup(result), load.latency(result)
    assert [trace.name for trace in pareto.data] == ["base", "&lt;b&gt;spec"]
    assert [trace.textposition for trace in pareto.data] == ["top center", "bottom center"], "no number on another"
    assert list(speedup.data[0].x) == [1, 4, 9] and list(speedup.data[0].y)[1:2] == pytest.approx([1])
    assert speedup.data[1].name == "1.0 at about 4.0" and list(speedup.data[1].y) == [1]
    (alone,) = load.speedup(result_of([row for row in rows if row.level.concurrency != 1], *names)).data
    assert list(alone.x) == [4, 9], "what never paid does not stop paying"
    assert len(latency.data) == 4
    for figure in (pareto, latency):
        assert [note.text for note in figure.layout.annotations] == [
            "base",
            "&lt;b&gt;spec",
        ] and not figure.layout.showlegend
    page = report.page(result, "mine")
    assert page.startswith("<!doctype html>") and "<b>spec" not in page and "Time to first token" in page


def reading(seconds: float, drafts=10, drafted=50, accepted=20, at=(10, 5), tokens=100, running=1, waiting=0):
    return Reading(seconds, Counts(drafts, drafted, accepted, at, tokens, running, waiting))


def test_a_window_has_the_change_of_the_counters():
    found = window(reading(0), reading(4, drafts=30, drafted=150, accepted=60, at=(26, 9), tokens=180))
    assert (found.acceptance_rate, found.mean_accepted_length, found.drafted) == (0.4, 3.0, 100)
    assert found.accepted_at == (0.8, 0.2)
    assert found.tokens_per_s == 20
    assert window(reading(0), reading(4, tokens=5)) is None, "started anew"
    idle = window(reading(0), reading(4))
    assert (idle.acceptance_rate, idle.mean_accepted_length, idle.accepted_at) == (None, None, ())


@pytest.mark.parametrize(
    ("accepted", "more", "named"),
    [
        (100, {}, "healthy: 80%"),
        (85, {}, "fair: 65%"),
        (60, {}, "Shorten the lookahead, and check that the drafter"),
        (100, {"waiting": 3}, "3 requests wait"),
        (28, {"drafted": 60}, "Only 10 tokens were drafted"),
        (20, {"drafted": 50, "running": 0}, "no request runs"),
    ],
)
def test_advice_follows_the_fields_thresholds(accepted, more, named):
    found = window(
        reading(0), reading(4, **{"drafts": 30, "drafted": 150, "accepted": accepted, "tokens": 180, **more})
    )
    assert any(named in sentence for sentence in serving.advice([found]))
    assert all(serving.readings([found]).rows[0][:6])


def test_advice_is_of_the_last_time_that_something_was_drafted():
    drafted = window(reading(0), reading(4, drafts=30, drafted=150, accepted=100, tokens=180))
    idle = dataclasses.replace(drafted, end_s=20, drafted=0, acceptance_rate=None, waiting=2)
    healthy, since, waiting = serving.advice([drafted, idle, idle])
    assert "healthy: 80%" in healthy and since.endswith(" 4 s.") and "2 requests wait" in waiting


def test_the_charts_over_time_have_each_position_and_the_queue():
    found = [window(reading(0), reading(4 + i, drafts=30, drafted=150, accepted=60, at=(26, 9))) for i in range(3)]
    accepted, traffic = serving.over_time(found)
    assert [trace.name for trace in accepted.data] == ["all", "position 1", "2"]
    assert [trace.name for trace in traffic.data] == ["tok/s", "running", "waiting"]
    assert {note.text for note in accepted.layout.annotations} == {"all", "position 1", "2"}
    assert {note.text for note in traffic.layout.annotations} == {"running", "waiting"}
    assert not accepted.layout.showlegend and not traffic.layout.showlegend
