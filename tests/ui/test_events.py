"""The handlers without a browser."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator

import gradio as gr
import pytest

from playground import trace
from playground.experiments.events import LaneStarted, RoundDone
from playground.ui.events import Events, Outputs
from tests.ui import fakes
from tests.ui.test_controls import ASKED

PAIRS = {"fake": fakes.PAIR}


@pytest.fixture
def outputs(tmp_path) -> Outputs:
    """Names stand for the components."""
    names = [field.name for field in dataclasses.fields(Outputs)]
    components = {name: name for name in names}

    class Save(str):
        GRADIO_CACHE = str(tmp_path)

    return Outputs(**{**components, "save": Save("save")})


def values(**changes) -> tuple:
    return dataclasses.astuple(dataclasses.replace(ASKED, **changes))


def picture(updates: Iterator[dict]) -> dict:
    """What the page shows after all updates."""
    shown = {}
    for update in updates:
        shown |= update
    return shown


def endless(emitted: threading.Event, stopped: threading.Event):
    """A comparison whose first lane goes on until it is stopped."""

    def run(store, pair, lane, request, *, stop, emit) -> None:
        emit(LaneStarted(0, lane))
        while not stop.is_set():
            emit(RoundDone(0, next(fakes.rounds(lane, 8))))
            emitted.set()
            stop.wait(0.01)
        stopped.set()

    return run


def test_a_run_yields_both_logs_the_figures_and_a_file_that_can_be_read_again(outputs):
    shown = picture(Events(None, PAIRS, fakes.run).run(outputs, "session", *values(max_new_tokens=24)))
    assert shown["log_0"].count("\n") == 24
    assert 0 < shown["log_1"].count("\n") < 24
    assert "×" in shown["verdict"] and "Done" in shown["status"]
    assert shown["run"]["interactive"] and not shown["stop"]["interactive"]
    with open(shown["save"]["value"], encoding="utf-8") as file:
        assert trace.load(file.read()).lanes[0].request.max_new_tokens == 24


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "The prompt is empty."),
        ({"prompt": "fail"}, "ran out of memory &lt;b&gt;here&lt;/b&gt;"),
        ({"prompt": "crash"}, "inside the playground"),
        ({"pair": "nothing"}, "There is no pair"),
    ],
)
def test_an_error_becomes_a_sentence_and_run_can_be_pressed_again(outputs, changes, sentence):
    shown = picture(Events(None, PAIRS, fakes.run).run(outputs, "session", *values(**changes)))
    assert sentence in shown["status"] and 'role="alert"' in shown["status"]
    assert shown["run"]["interactive"] and not shown["save"]["interactive"]


def test_stop_ends_the_session_s_own_run_and_no_other(outputs):
    emitted, stopped = threading.Event(), threading.Event()
    events = Events(None, PAIRS, endless(emitted, stopped))
    updates = events.run(outputs, "mine", *values())
    shown = next(updates)
    while not emitted.is_set():
        shown |= next(updates)
    events.stop("another's")
    assert not stopped.is_set()
    events.stop("mine")
    shown |= picture(updates)
    assert stopped.is_set()
    assert shown["log_0"] and "Stopped" in shown["status"] and "stopped" in shown["head_0"]


def test_a_closed_generator_stops_its_run(outputs):
    emitted, stopped = threading.Event(), threading.Event()
    updates = Events(None, PAIRS, endless(emitted, stopped)).run(outputs, "mine", *values())
    while not emitted.is_set():
        next(updates)
    updates.close()
    assert stopped.wait(5)


def test_a_second_session_waits_and_is_told_its_place(outputs):
    emitted, stopped = threading.Event(), threading.Event()
    events = Events(None, PAIRS, endless(emitted, stopped))
    first, second = (events.run(outputs, name, *values()) for name in ("first", "second"))
    while not emitted.is_set():
        next(first)
    status = ""
    while "number 2 in the line, one run goes before yours" not in status:
        status = next(second).get("status", "")
    events.stop("second")
    assert "Stopped" in picture(second)["status"]
    events.stop("first")
    picture(first)


def test_a_trace_is_opened_and_another_file_is_refused(outputs):
    events = Events(None, PAIRS, fakes.run)
    comparison = fakes.comparison(tokens=10)
    shown = events.open(outputs, json.dumps(comparison.to_json()).encode())
    assert shown["log_0"].count("\n") == 10 and "Done" in shown["status"]
    for data in (b"\xff\x00", b"[]", b"{", json.dumps({"schema_version": 99, "lanes": []}).encode()):
        with pytest.raises(gr.Error):
            events.open(outputs, data)


def test_clear_empties_everything(outputs):
    shown = Events(None, PAIRS, fakes.run).clear(outputs)
    assert shown["log_0"] == shown["log_1"] == shown["status"] == "" and shown["race"] is None


def test_the_endpoint_returns_the_whole_comparison():
    events = Events(None, PAIRS, fakes.run)
    data = events.compare("A prompt", pair="fake", max_new_tokens=5)
    assert trace.Comparison.from_json(json.loads(json.dumps(data))).lanes[1].lane.drafter == "ngram"
    with pytest.raises(gr.Error, match="The prompt is empty"):
        events.compare("", pair="fake")
