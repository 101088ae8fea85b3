"""The handlers without a browser."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator

import gradio as gr
import pytest

from playground import export
from playground.lane import Lane, Request
from playground.trace import Comparison, Round
from playground.ui.controls import Asked
from playground.ui.events import Events
from tests.ui import fakes
from tests.ui.test_controls import ASKED

PAIRS = {"fake": fakes.PAIR}


def asked(**changes) -> Asked:
    return dataclasses.replace(ASKED, **changes)


def last(updates: Iterator[tuple]) -> tuple[dict, Comparison | None]:
    """What the stage shows after all updates, and the comparison that they ended in."""
    *_, update = updates
    return update


def logs(stage: dict) -> list[str]:
    return [lane["log"] for lane in stage["lanes"]]


def endless(emitted: threading.Event, stopped: threading.Event) -> type[fakes.Backend]:
    """A backend whose lanes go on until they are stopped."""

    class Endless(fakes.Backend):
        def run(self, lane: Lane, request: Request) -> fakes.Run:
            run = fakes.Run(lane, request)
            run.rounds = self._rounds(lane)
            return run

        def _rounds(self, lane: Lane) -> Iterator[Round]:
            try:
                while True:
                    yield next(fakes.rounds(lane, 8))
                    emitted.set()
                    time.sleep(0.01)
            finally:
                stopped.set()

    return Endless


def test_a_run_streams_both_logs_and_ends_in_a_file_that_can_be_read_again():
    events = Events(PAIRS, fakes.Backend)
    shown, comparison = last(events.stream("session", asked(max_new_tokens=24)))
    standard, assisted = logs(shown)
    assert 0 < assisted.count("\n") < standard.count("\n") == 24
    assert "Done" in shown["status"]["text"]
    *_, save, run, stop, _, _ = events.finish(comparison)
    assert run["interactive"] and not stop["interactive"]
    with open(save["value"], encoding="utf-8") as file:
        assert export.load(file.read()) == comparison


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "The prompt is empty."),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"prompt": "fail"}, "ran out of memory <b>here</b>"),
        ({"prompt": "crash"}, "inside the playground"),
        ({"pair": "nothing"}, "There is no pair"),
    ],
)
def test_an_error_becomes_a_sentence_and_run_can_be_pressed_again(changes, sentence):
    events = Events(PAIRS, fakes.Backend)
    shown, comparison = last(events.stream("session", asked(**changes)))
    assert sentence in shown["status"]["text"] and shown["status"]["kind"] == "error"
    *_, save, run, _, _, _ = events.finish(comparison)
    assert run["interactive"] and not save["interactive"]


def test_stop_ends_the_session_s_own_run_and_no_other():
    emitted, stopped = threading.Event(), threading.Event()
    events = Events(PAIRS, endless(emitted, stopped))
    updates = events.stream("mine", asked())
    while not emitted.is_set():
        next(updates)
    events.stop("another's")
    assert not stopped.is_set()
    events.stop("mine")
    shown, comparison = last(updates)
    assert stopped.is_set() and comparison.standard.finish == "stopped"
    assert shown["lanes"][0]["log"] and shown["lanes"][0]["state"] == "stopped"
    assert "Stopped" in shown["status"]["text"]


def test_stop_counts_though_it_is_pressed_before_the_run_has_begun_and_only_for_that_run():
    stopped = threading.Event()
    events = Events(PAIRS, endless(threading.Event(), stopped))
    events.begin("mine")
    updates = events.stream("mine", asked())
    next(updates)
    events.stop("mine")
    assert "Stopped" in last(updates)[0]["status"]["text"]
    events = Events(PAIRS, fakes.Backend)
    events.stop("mine")
    events.begin("mine")
    assert "Done" in last(events.stream("mine", asked()))[0]["status"]["text"]


def test_a_closed_generator_stops_its_run():
    emitted, stopped = threading.Event(), threading.Event()
    updates = Events(PAIRS, endless(emitted, stopped)).stream("mine", asked())
    while not emitted.is_set():
        next(updates)
    updates.close()
    assert stopped.wait(5)


def test_a_second_session_waits_and_is_told_its_place():
    emitted, stopped = threading.Event(), threading.Event()
    events = Events(PAIRS, endless(emitted, stopped))
    first, second = (events.stream(name, asked()) for name in ("first", "second"))
    while not emitted.is_set():
        next(first)
    status = ""
    while "You are 2nd in the queue." not in status:
        status = next(second)[0]["status"]["text"]
    events.stop("second")
    assert "Stopped" in last(second)[0]["status"]["text"]
    events.stop("first")
    last(first)


def test_a_trace_is_opened_and_another_file_is_refused():
    events = Events(PAIRS, fakes.Backend)
    comparison = fakes.comparison(tokens=10)
    shown, *_ = events.open(json.dumps(export.to_json(comparison)).encode())
    assert logs(shown)[0].count("\n") == 10 and "Done" in shown["status"]["text"]
    for data in (b"\xff\x00", b"[]", b"{", json.dumps({"schema_version": 99, "lanes": []}).encode()):
        with pytest.raises(gr.Error):
            events.open(data)


def test_clear_empties_everything():
    shown, *_ = Events(PAIRS, fakes.Backend).clear()
    assert logs(shown) == ["", ""] and shown["status"]["text"] == ""


def test_the_endpoint_returns_the_whole_comparison():
    events = Events(PAIRS, fakes.Backend)
    data = events.compare("mine", asked(max_new_tokens=5))
    assert export.from_json(json.loads(json.dumps(data))).lanes[1].lane.drafter == "ngram"
    with pytest.raises(gr.Error, match="The prompt is empty"):
        events.compare("mine", asked(prompt=""))
