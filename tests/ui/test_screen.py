from __future__ import annotations

import dataclasses

import pytest

from playground import metrics
from playground.experiments.events import Finished, LaneFinished, LaneStarted, RoundDone
from playground.presets import load_pairs, load_suites
from playground.progress import Progress
from playground.trace import Comparison, Memory
from playground.ui.compare.shown import Screen
from playground.views import run_details, stage
from tests.examples import plain_round
from tests.ui import fakes


def events(comparison):
    yield Progress("Warming up", 0.5)
    for index, trace in enumerate(comparison.lanes):
        yield LaneStarted(index, trace.lane)
        for round_ in trace.rounds:
            yield RoundDone(index, round_)
        yield LaneFinished(index, trace)
    yield Finished(comparison)


def test_streaming_and_loading_a_trace_end_in_the_same_picture():
    comparison = fakes.comparison(tokens=30)
    streamed, loaded = Screen("waiting", limit=30), Screen()
    for event in events(comparison):
        streamed.take(event)
    loaded.load(comparison)
    waited = streamed.value()["status"]  # how long, which a trace does not hold
    assert streamed.value() == {**loaded.value(), "replay": "once", "status": waited}
    assert streamed.comparison is loaded.comparison is comparison


def test_logs_only_grow():
    comparison = fakes.comparison(tokens=12)
    screen, seen = Screen(), ""
    for event in events(comparison):
        screen.take(event)
        log = screen.value()["lanes"][1]["log"]
        assert log.startswith(seen)
        seen = log
    assert seen == stage.log(comparison.lanes[1].rounds)


def test_a_lane_that_has_ended_has_its_gaps_and_its_median_plain_pass():
    comparison = fakes.comparison(tokens=12)
    screen = Screen("waiting")
    steps = list(events(comparison))
    ended = next(i for i, event in enumerate(steps) if isinstance(event, LaneFinished))
    for event in steps[:ended]:
        screen.take(event)
    assert screen.value()["lanes"][0]["timing"] is None
    screen.take(steps[ended])
    timing = screen.value()["lanes"][0]["timing"]
    assert timing["gaps"]["n"] == 11 and timing["pass_s"] == pytest.approx(fakes.PASS_S)


def test_the_status_says_which_lane_runs_and_how_far_it_is():
    screen = Screen("waiting", limit=2)
    screen.take(Progress("Warming up"))
    assert screen.value()["status"] == {"text": "Warming up", "kind": "busy", "fraction": None}
    screen.take(LaneStarted(0, fakes.comparison(tokens=2).lanes[0].lane))
    value = screen.value()
    assert value["status"] == {"text": "Running Standard", "kind": "busy", "fraction": 0}
    assert [lane["state"] for lane in value["lanes"]] == ["running", "waiting"]
    screen.take(LaneStarted(1, fakes.comparison(tokens=2).lanes[1].lane))
    for index in (1, 0):
        screen.take(RoundDone(index, plain_round(1)))
    status = screen.value()["status"]
    assert status["text"] == "Running Standard and Speculative" and status["fraction"] == 0.5


def test_a_run_that_was_cut_off_keeps_what_it_has():
    screen = Screen("waiting")
    trace = fakes.comparison(tokens=4).lanes[0]
    screen.take(LaneStarted(0, trace.lane))
    screen.take(RoundDone(0, trace.rounds[0]))
    screen.end("No memory left.")
    value = screen.value()
    assert value["status"] == {"text": "No memory left.", "kind": "error", "fraction": None}
    assert value["lanes"][0]["log"] == stage.line(trace.rounds[0])
    assert [lane["state"] for lane in value["lanes"]] == ["stopped", ""]


def test_a_finished_run_has_a_verdict_and_details():
    comparison = fakes.comparison(tokens=30)
    screen = Screen()
    assert screen.value()["verdict"]["figure"] == ""
    screen.load(comparison)
    verdict = screen.value()["verdict"]
    assert verdict["figure"].endswith("×") and verdict["sentences"][0].startswith("Identical output")
    details = run_details.html(comparison, screen.chosen)
    assert "fake weights &lt;b&gt;1&lt;/b&gt;" in details and "Memory" not in details


def test_a_headline_of_repeats_is_bold_if_the_whole_range_lies_on_one_side_of_1():
    once = fakes.comparison(tokens=30)
    screen = Screen()
    screen.load(dataclasses.replace(once, repeats=(once.lanes,) * 3))
    verdict = screen.value()["verdict"]
    assert verdict["runs"].endswith("4 runs each") and verdict["trust"] == "holds" and not verdict["badges"]
    swapped = tuple(dataclasses.replace(a, rounds=b.rounds) for a, b in zip(once.lanes, once.lanes[::-1], strict=True))
    screen.load(dataclasses.replace(once, repeats=(swapped,)))
    verdict = screen.value()["verdict"]
    assert verdict["figure"].startswith("≈")
    assert any(badge.startswith("No clear") for badge in verdict["badges"])


def test_what_each_lane_holds_in_memory_is_a_line():
    first, second = fakes.comparison(tokens=3).lanes
    named = dataclasses.replace(second, lane=dataclasses.replace(second.lane, name="<b>"))
    held = Memory(270_000_000, 5_000_000, 0, 0), Memory(270_000_000, 5_000_000, 8_000_000, 1_000_000)
    lanes = [dataclasses.replace(trace, memory=memory) for trace, memory in zip((first, named), held, strict=True)]
    assert "Standard 275.0 MB; &lt;b&gt; 284.0 MB" in run_details.html(Comparison(tuple(lanes)), "<b>")


def test_the_page_begins_with_a_recorded_run_that_says_where_and_when():
    value = Screen.recorded().value()
    assert value["replay"] and value["banner"].startswith("Recorded run: ")
    assert [lane["state"] for lane in value["lanes"]] == ["done", "done"]
    assert value["verdict"]["figure"].endswith("×") and value["lanes"][0]["log"]


def test_the_recorded_run_is_the_first_example_with_the_default_drafter_and_a_range():
    recorded, starter = Screen.recorded().comparison, load_pairs()[0]["starter"]
    assert recorded.standard.request.prompt == load_suites()[0]["first"].prompts[0].text
    assert recorded.others[0].lane.drafter == starter.drafter
    assert metrics.sure(recorded) and metrics.ranked(recorded)[0].interval


def test_an_opened_trace_says_where_it_was_run():
    screen = Screen()
    screen.opened(fakes.comparison(tokens=6), "a file")
    value = screen.value()
    assert " a file: " in value["banner"] and "2026-01-01 00:00" in value["banner"]
    assert "Fake CPU" in value["status"]["text"] and "Fake CPU" not in value["banner"], "said once"
    assert not value["replay"]


def test_rounds_that_are_amended_at_the_end_replace_those_that_were_streamed():
    screen = Screen(lanes=2)
    whole = fakes.comparison(tokens=12)
    for index, trace in enumerate(whole.lanes):
        screen.take(LaneStarted(index, trace.lane))
        for round_ in trace.rounds:
            screen.take(RoundDone(index, dataclasses.replace(round_, drafted=round_.accepted)))
        screen.take(LaneFinished(index, trace))
    assert screen.lanes[1].log == stage.log(whole.lanes[1].rounds)
    assert screen.lanes[1].measure() == metrics.measure(whole.lanes[1])
