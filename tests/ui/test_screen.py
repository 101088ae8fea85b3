from __future__ import annotations

from playground.experiments.events import Finished, LaneFinished, LaneStarted, Progress, RoundDone
from playground.ui.screen import Screen
from playground.views import tokens
from tests.ui import fakes


def events(comparison):
    yield Progress("Warming up", 0.5)
    for index, trace in enumerate(comparison.lanes):
        yield LaneStarted(index, trace.lane)
        for round_ in trace.rounds:
            yield RoundDone(index, round_)
        yield LaneFinished(index, trace)
    yield Finished(comparison)


def settled(screen: Screen) -> dict:
    values = screen.changes()
    return {name: values[name] for name in values if name not in ("race", "rounds", "gaps", "acceptance")}


def test_streaming_and_loading_a_trace_end_in_the_same_picture():
    comparison = fakes.comparison(tokens=30)
    streamed, loaded = Screen("waiting", limit=30), Screen()
    for event in events(comparison):
        streamed.take(event)
    loaded.load(comparison)
    assert settled(streamed) == settled(loaded)
    assert streamed.comparison is comparison


def test_changes_are_told_once_and_logs_only_grow():
    comparison = fakes.comparison(tokens=12)
    screen, seen = Screen(), ""
    for event in events(comparison):
        screen.take(event)
        log = screen.changes().get("log_1", seen)
        assert log.startswith(seen)
        seen = log
    assert seen == tokens.log(comparison.lanes[1].rounds)
    assert screen.changes() == {}


def test_the_status_says_which_lane_runs_and_how_far_it_is():
    screen = Screen("waiting", limit=2)
    trace = fakes.comparison(tokens=2).lanes[0]
    screen.take(LaneStarted(0, trace.lane))
    shown = screen.changes()
    assert "Lane 1 of 2 is running: Standard" in shown["status"]
    assert "running" in shown["head_0"] and "waiting" in shown["head_1"]


def test_a_run_that_was_cut_off_keeps_what_it_has():
    screen = Screen("waiting")
    comparison = fakes.comparison(tokens=4)
    screen.take(LaneStarted(0, comparison.lanes[0].lane))
    screen.take(RoundDone(0, comparison.lanes[0].rounds[0]))
    screen.end("No memory <left>.")
    shown = screen.changes()
    assert "No memory &lt;left&gt;." in shown["status"]
    assert shown["log_0"] == tokens.line(comparison.lanes[0].rounds[0])
    assert "stopped" in shown["head_0"] and "waiting" not in shown["head_1"]
