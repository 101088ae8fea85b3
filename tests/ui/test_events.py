"""The handlers without a browser."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import gradio as gr
import pytest

from playground import constraint, export
from playground.errors import PlaygroundError
from playground.hosting import turns
from playground.hosting.access import FOR_VISITORS, Access
from playground.lane import Lane, Request
from playground.progress import Progress
from playground.trace import Comparison, Round
from playground.ui.compare import rendered
from playground.ui.compare.controls import OWN, CompareOptions
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Shown
from playground.views import replay_file
from tests.ui import fakes
from tests.ui.driven import driven, unpacked
from tests.ui.test_controls import asked

PAIRS = {"fake": fakes.PAIR, "large": fakes.LARGE, "far": fakes.FAR}


def last(updates: AsyncGenerator[tuple, None] | Iterator[tuple]) -> tuple[dict, Shown | None]:
    """The stage's value after all updates, and what is shown at last."""
    *_, update = driven(updates)
    return update


def opened(events: Handlers, comparison: Comparison, session: str = "") -> dict:
    return asyncio.run(events.open(json.dumps(export.to_json(comparison)).encode(), session))


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


def test_a_run_streams_both_logs_and_writes_a_file_only_when_one_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    events = fakes.handlers(PAIRS, fakes.Backend)
    stage, shown = last(events.stream("session", asked(max_new_tokens=24)))
    standard, assisted = logs(stage)
    assert 0 < assisted.count("\n") < standard.count("\n") == 24
    assert "Done" in stage["status"]["text"]
    assert events.finish(shown)["save"]["interactive"]
    asyncio.run(events.choose(shown, shown.chosen))
    assert not [*tmp_path.rglob("*.*")]
    written = {form: Path(asyncio.run(events.save(shown, form, ""))["file"]["value"]) for form in rendered.FORMS}
    assert {*written.values()} == {*tmp_path.rglob("*.*")}
    assert export.load(written["json"].read_bytes()) == shown.comparison
    assert written["html"].read_text(encoding="utf-8") == replay_file.build(shown.comparison, shown.chosen)
    assert written["gif"].read_bytes() == replay_file.build_gif(shown.comparison, shown.chosen)
    for unknown in (events.save(None, "json", ""), events.save(shown, "exe", "")):
        with pytest.raises(gr.Error, match="longer kept"):
            asyncio.run(unknown)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "is empty"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"prompt": "fail"}, "memory <b>here</b>"),
        ({"prompt": "crash"}, "Internal error"),
        ({"pair": "nothing"}, "'nothing'"),
    ],
)
def test_an_error_becomes_a_sentence_and_leaves_nothing_to_save(changes, sentence):
    events = fakes.handlers(PAIRS, fakes.Backend)
    stage, shown = last(events.stream("session", asked(**changes)))
    assert sentence in stage["status"]["text"] and stage["status"]["kind"] == "error"
    end = events.finish(shown)
    assert not end["menu"] and not end["save"]["interactive"]


def test_a_script_in_a_prompt_is_nothing_that_gradio_warns_of():
    events = fakes.handlers(PAIRS, fakes.Backend)
    end = events.finish(last(events.stream("session", asked(prompt="echo <script src=x>")))[1])
    assert "<script src=x>" in end["menu"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("menu", "details"):
            gr.HTML().postprocess(end[name])


def test_stop_ends_the_session_s_own_run_and_no_other():
    emitted, stopped = threading.Event(), threading.Event()
    events = fakes.handlers(PAIRS, endless(emitted, stopped))
    updates = driven(events.stream("mine", asked()))
    while not emitted.is_set():
        next(updates)
    events.stop("another's")
    assert not stopped.is_set()
    events.stop("mine")
    stage, shown = last(updates)
    assert stopped.is_set() and shown.comparison.standard.finish == "stopped"
    assert stage["lanes"][0]["log"] and stage["lanes"][0]["state"] == "stopped"
    assert "Stopped" in stage["status"]["text"] and not stage["verdict"]["repeatable"]


def test_stop_counts_though_it_is_pressed_before_the_run_has_begun_and_only_for_that_run():
    stopped = threading.Event()
    events = fakes.handlers(PAIRS, endless(threading.Event(), stopped))
    events.begin("mine")
    updates = driven(events.stream("mine", asked()))
    next(updates)
    events.stop("mine")
    assert "Stopped" in last(updates)[0]["status"]["text"]
    events = fakes.handlers(PAIRS, fakes.Backend)
    events.stop("mine")
    events.begin("mine")
    assert "Done" in last(events.stream("mine", asked()))[0]["status"]["text"]


def test_a_closed_generator_stops_its_run():
    emitted, stopped = threading.Event(), threading.Event()
    updates = driven(fakes.handlers(PAIRS, endless(emitted, stopped)).stream("mine", asked()))
    while not emitted.is_set():
        next(updates)
    updates.close()
    assert stopped.wait(60)


def test_a_tab_that_is_loaded_anew_finds_its_run_with_all_rounds_and_stops_it(monkeypatch):
    emitted, stopped = threading.Event(), threading.Event()
    events = fakes.handlers(PAIRS, endless(emitted, stopped))
    updates = driven(events.stream("before", asked(), tab="mine"))
    while not emitted.is_set():
        next(updates)
    events.leave("another's")
    again = driven(events.rejoin("after", tab="mine"))
    stage, _ = next(again)
    assert stage["lanes"][0]["log"] and not stopped.is_set()
    assert (
        list(driven(events.rejoin("a stranger", tab="guessed"))) == list(driven(events.rejoin("nobody", tab=""))) == []
    )
    updates.close()
    assert not stopped.wait(0.2), "it is read again"
    events.stop("after")
    stage, shown = last(again)
    assert stopped.is_set() and shown.pair and "Stopped after" in stage["status"]["text"]

    emitted.clear()
    stopped.clear()
    monkeypatch.setattr(turns, "RETURNS_S", 0.01)

    async def leave() -> None:
        updates = events.stream("before", asked(), tab="closed")
        async for _ in updates:
            if emitted.is_set():
                break
        await updates.aclose()
        assert events.turns.of_tab("closed"), "it waits for its tab"
        while events.turns.of_tab("closed"):
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert stopped.wait(60), "which does not come"


def test_a_second_session_waits_and_is_told_its_place():
    emitted, stopped = threading.Event(), threading.Event()
    events = fakes.handlers(PAIRS, endless(emitted, stopped))
    first, second = (driven(events.stream(name, asked())) for name in ("first", "second"))
    while not emitted.is_set():
        next(first)
    status = ""
    while "2nd in" not in status:
        status = next(second)[0]["status"]["text"]
    events.stop("second")
    assert "Stopped" in last(second)[0]["status"]["text"]
    events.stop("first")
    last(first)


def test_a_repeat_counts_in_the_interval_and_keeps_the_run():
    events = fakes.handlers(PAIRS, fakes.Backend)
    stage, shown = last(events.stream("mine", asked(max_new_tokens=8)))
    assert stage["verdict"]["repeatable"] and stage["verdict"]["runs"].endswith("2 runs each")
    events.begin("mine")
    stages = list(driven(events.repeat("mine", shown)))
    assert not stages[0][0]["verdict"]["repeatable"], "no second press while it runs"
    stage, again = stages[-1]
    assert again.comparison.lanes == shown.comparison.lanes and len(again.comparison.repeats) == 4
    assert stage["verdict"]["runs"].endswith("5 runs each") and stage["verdict"]["repeatable"]


def test_a_repeat_that_is_stopped_keeps_what_was_there():
    events = fakes.handlers(PAIRS, fakes.Backend)
    _, shown = last(events.stream("mine", asked(max_new_tokens=8)))
    updates = driven(events.repeat("mine", shown))
    next(updates)
    events.stop("mine")
    stage, again = last(updates)
    assert again.comparison.lanes == shown.comparison.lanes and stage["lanes"][1]["log"]


class Picky(fakes.Backend):
    """Has no assistant."""

    def load(self, lane, progress):
        if lane.drafter == "assistant":
            raise PlaygroundError("There is no <b>assistant</b> here. Choose another drafter.")


def test_all_drafters_run_and_one_that_cannot_is_left_out_with_its_sentence():
    pair = dataclasses.replace(fakes.PAIR, drafters=("ngram", "assistant", "suffix"))
    events = fakes.handlers({"fake": pair}, Picky)
    stage, shown = last(events.stream("mine", asked(max_new_tokens=8), every=True))
    assert [trace.lane.drafter for trace in shown.comparison.lanes] == ["none", "ngram", "suffix"]
    table = stage["drafters"]
    assert {row["lane"] for row in table["rows"]} == {"Prompt lookup", "Suffix lookup"}
    assert table["skipped"] == ["Assistant model: There is no <b>assistant</b> here. Choose another drafter."]
    assert stage["lanes"][1]["name"] == table["chosen"] == table["rows"][0]["lane"]

    other = table["rows"][1]["lane"]
    stage, shown, *_ = unpacked(asyncio.run(events.choose(shown, other)))
    assert stage["lanes"][1]["name"] == stage["drafters"]["chosen"] == shown.chosen == other
    assert stage["lanes"][1]["log"] and stage["verdict"]["repeatable"]
    stage, from_file, *_ = unpacked(opened(events, shown.comparison))
    assert len(stage["drafters"]["rows"]) == 2 and not stage["verdict"]["repeatable"]
    assert not unpacked(asyncio.run(events.choose(from_file, other)))[0]["verdict"]["repeatable"]


def test_all_drafters_stopped_keeps_what_they_have():
    emitted = threading.Event()

    class Waits(endless(emitted, threading.Event())):  # type: ignore[misc]
        """After the standard lane, a lane goes on until it is stopped."""

        def run(self, lane: Lane, request: Request) -> fakes.Run:
            return fakes.Run(lane, request) if lane.name == "Standard" else super().run(lane, request)

    events = fakes.handlers(PAIRS, Waits)
    updates = driven(events.stream("mine", asked(max_new_tokens=40), every=True))
    for _ in updates:
        if emitted.is_set():
            break
    events.stop("mine")
    stage, shown = last(updates)
    assert [trace.finish for trace in shown.comparison.lanes] == ["stopped"] * 3
    assert [row["note"] for row in stage["drafters"]["rows"]] == ["stopped"] * 2


def test_what_cannot_run_here_is_refused_before_anything_is_loaded():
    events = fakes.handlers(PAIRS, endless(threading.Event(), threading.Event()))
    stage, shown = last(events.stream("mine", asked(pair="large")))
    assert "82 GB" in stage["status"]["text"] and stage["status"]["kind"] == "error" and shown is None
    with pytest.raises(gr.Error, match="82 GB"):
        asyncio.run(events.compare("mine", asked(pair="large")))


def test_a_large_download_is_asked_first():
    events = fakes.handlers(PAIRS, fakes.Backend)
    stage, shown = last(events.stream("mine", asked(pair="far", max_new_tokens=4), every=True))
    assert stage["status"]["kind"] == "error" and "2.4 GB" in stage["status"]["text"] and shown is None
    assert "2.4 GB" in stage["offer"]
    stage, shown = last(events.accept("mine", asked(pair="far", max_new_tokens=4)))
    assert stage["offer"] == "" and len(shown.comparison.lanes) == 3, "as it was asked: all drafters"
    stage, _ = last(events.accept("mine", asked(pair="far", max_new_tokens=4)))
    assert stage["offer"], "agreed to once only"
    with pytest.raises(gr.Error, match=r"2\.4 GB"):
        asyncio.run(events.compare("a program", asked(pair="far")))


def test_a_trace_is_opened_and_another_file_is_refused():
    events = fakes.handlers(PAIRS, fakes.Backend)
    comparison = fakes.comparison(tokens=10)
    shown, *_ = unpacked(opened(events, comparison))
    assert logs(shown)[0].count("\n") == 10 and "Ran on" in shown["status"]["text"]
    for data in (b"\xff\x00", b"[]", b"{", json.dumps({"schema_version": 99, "lanes": []}).encode()):
        with pytest.raises(gr.Error):
            asyncio.run(events.open(data))


def test_the_endpoint_returns_the_whole_comparison():
    events = fakes.handlers(PAIRS, fakes.Backend)
    found = asyncio.run(events.compare("mine", asked(max_new_tokens=5)))
    assert (found.comparison.others[0].lane.drafter, found.chosen) == ("ngram", "Prompt lookup")
    with pytest.raises(gr.Error, match="is empty"):
        asyncio.run(events.compare("mine", asked(prompt="")))


def called(**of_call: str) -> list[dict]:
    call = {"name": "f", "arguments": "{}", "id": "1"} | of_call
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "content": "1", "tool_call_id": call["id"]}
    return [{"role": "user", "content": "x"}, assistant, answer, {"role": "assistant", "content": "It is 1."}]


def public(backend=fakes.Backend, **limits) -> Handlers:
    access = Access(public=True, models=(), limits=dataclasses.replace(FOR_VISITORS, **limits))
    return fakes.handlers(PAIRS, backend, access=access)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pair": OWN, "target": "/etc"}, "Custom models"),
        ({"pair": OWN, "target": "/no/such/folder", "assistant": "/etc"}, "Custom models"),
        ({"max_new_tokens": 2**31 - 1}, "up to 1,024"),
        ({"prompt": "x" * 30_000}, "takes 20,000"),
        ({"template": f"a={'x' * 30_000}"}, "takes 20,000"),
        ({"messages": json.dumps(called(id="c" * 30_000))}, "takes 20,000"),
        ({"messages": json.dumps(called(name="n" * 30_000))}, "takes 20,000"),
        ({"json_schema": '{"type": "integer", "multipleOf": 9999973}'}, "than 0.3 s"),
    ],
)
def test_what_strangers_may_not_ask_for_is_refused_on_the_page_and_by_the_endpoint(changes, sentence):
    stage, _ = last(public(grammar_s=0.3).stream("mine", asked(**changes)))
    assert sentence in stage["status"]["text"]
    with pytest.raises(gr.Error, match=sentence):
        asyncio.run(public(grammar_s=0.3).compare("mine", asked(**changes)))


@pytest.mark.parametrize("where", [(constraint, "try_out"), (CompareOptions, "resolve")])
def test_another_visitor_runs_while_the_request_of_one_is_read(where, monkeypatch):
    """To read it can take seconds: neither the event loop nor the device is held for it."""
    usual, read = getattr(*where), threading.Event()

    def slow(it, *arguments, **more):
        assert "slow" not in str(it) or read.wait(60)
        return usual(it, *arguments, **more)

    async def visit() -> None:
        events = public()
        first = asyncio.ensure_future(anext(events.stream("a", asked(prompt="slow", regex="a+"))))
        shown = await asyncio.wait_for(events.compare("b", asked(prompt="quick")), 60)
        assert shown.comparison.standard.rounds and not first.done()
        read.set()
        await first

    monkeypatch.setattr(*where, slow)
    asyncio.run(visit())


def test_long_texts_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.delattr(CompareOptions, "resolve")
    for name in ("template", "tools", "target", "regex", "system"):
        stage, _ = last(public().stream("mine", asked(**{name: "x" * 30_000})))
        assert "takes 20,000" in stage["status"]["text"]


def test_refused_requests_count_for_a_while(monkeypatch):
    monkeypatch.setattr(turns, "REFUSED_S", 600)
    events = public()
    said = [last(events.stream("mine", asked(prompt="")))[0]["status"]["text"] for _ in range(5)]
    assert "is empty" in said[3] and "4 of your" in said[4]
    assert "Done" in last(events.stream("other", asked()))[0]["status"]["text"]
    events.turns._refused.clear()
    monkeypatch.setattr(turns, "REFUSED_S", 0)
    said = [last(events.stream("mine", asked(prompt="")))[0]["status"]["text"] for _ in range(5)]
    assert "is empty" in said[4]


def test_a_run_that_takes_too_long_ends_with_what_it_has_and_says_so():
    emitted, stopped = threading.Event(), threading.Event()
    stage, shown = last(public(endless(emitted, stopped), run_s=0.3).stream("mine", asked()))
    assert stopped.wait(60) and "ended after 0 s" in stage["status"]["text"]
    assert shown.comparison.standard.rounds


def test_a_run_that_waits_too_long_is_refused_and_the_one_before_it_goes_on():
    events = public(endless(threading.Event(), stopped := threading.Event()), wait_s=0.3)
    first = driven(events.stream("a", asked(), address="8.8.8.8"))
    next(first), next(first)
    stage, shown = last(events.stream("b", asked(), address="8.8.4.4"))
    assert "waited 0 s" in stage["status"]["text"] and stage["status"]["kind"] == "error" and shown is None
    assert not stopped.is_set()
    events.stop("a")
    assert last(first)[1].comparison.standard.rounds


def test_a_visitor_s_runs_and_all_runs_are_counted_until_they_end():
    events = public(endless(threading.Event(), threading.Event()), runs_each=2, runs=3)
    runs = [driven(events.stream(session, asked(), address=address))
            for session, address in (("a", "8.8.8.8"), ("b", "8.8.8.8"), ("c", "8.8.4.4"))]  # fmt: skip
    for run in runs:
        next(run), next(run)
    stage, _ = last(events.stream("d", asked(), address="8.8.8.8"))
    assert "2 of your" in stage["status"]["text"]
    stage, _ = last(events.stream("d", asked(), address="1.1.1.1"))
    assert "3 runs" in stage["status"]["text"]
    for run in runs:
        run.close()
    run = driven(events.stream("d", asked(), address="8.8.8.8"))
    next(run), next(run)
    run.close()


def test_what_no_page_shows_cannot_be_pressed():
    events = fakes.handlers(PAIRS, fakes.Backend)
    _, shown = last(events.stream("mine", asked(max_new_tokens=4)))
    for press in (
        lambda: asyncio.run(events.choose(None, "Standard")),
        lambda: asyncio.run(events.choose(shown, {"lane": 1})),
        lambda: events.restore(None),
        lambda: events.repeat("mine", None),
        lambda: events.repeat("mine", dataclasses.replace(shown, pair=None)),
    ):
        with pytest.raises(gr.Error, match="no longer kept"):
            press()


def test_strangers_read_no_path_of_the_server():
    class Telling(fakes.Backend):
        def load(self, lane, progress):
            progress(Progress("Loading /srv/models/target"))
            if lane.drafter == "assistant":
                raise PlaygroundError("There is nothing in /srv/models/assistant. Choose another.")

    pair = dataclasses.replace(fakes.PAIR, drafters=("ngram", "assistant", "suffix"))
    access = Access(public=True, models=(), limits=FOR_VISITORS)
    events = fakes.handlers({"fake": pair}, Telling, access=access)
    stages = [stage for stage, _ in driven(events.stream("mine", asked(max_new_tokens=4), every=True))]
    assert "/srv" not in json.dumps(stages)
    assert "nothing in …/assistant. Choose another." in json.dumps(stages, ensure_ascii=False)
    with pytest.raises(gr.Error, match=r"nothing in …/assistant\. Choose"):
        asyncio.run(events.compare("mine", asked(drafter="assistant")))


def test_to_open_no_file_is_a_sentence():
    with pytest.raises(gr.Error, match="not JSON"):
        asyncio.run(fakes.handlers().open(None))
