"""A server's lane on the page, beside those of this process."""

from __future__ import annotations

import asyncio
import json

import gradio as gr
import pytest

from playground import export
from playground.backends.connect import Servers
from playground.hosting.access import FOR_VISITORS, NO_SERVERS, Access
from playground.ui.compare import controls, prefill
from playground.ui.compare.controls import SERVERS
from tests.backends.fake_server import BREAK, Answer, llama_server, serve
from tests.ui import fakes
from tests.ui.driven import driven, unpacked
from tests.ui.test_controls import ASKED, asked

SHORT = asked(max_new_tokens=4)


@pytest.fixture
def server():
    with serve(llama_server()) as server:
        yield server


@pytest.fixture
def events():
    return fakes.handlers({"fake": fakes.PAIR, "large": fakes.LARGE}, fakes.Backend)


def ran(updates) -> tuple:
    *_, (stage, shown) = driven(updates)
    return stage, shown


def test_a_server_runs_beside_the_local_lanes_and_is_shown(events, server):
    stage, shown = ran(events.stream("me", SHORT, Servers(f" {server.url}/v1 ")))
    names = [trace.lane.name for trace in shown.comparison.lanes]
    assert names == ["Standard", "Prompt lookup", "llama-server: ngram-map-k"]
    assert stage["drafters"]["chosen"] == stage["lanes"][1]["name"] == names[-1]
    assert "different programs" in stage["verdict"]["badges"][0] and stage["verdict"]["repeatable"]
    _, repeated = ran(events.repeat("me", shown))
    assert [len(lanes) for lanes in repeated.comparison.repeats] == [3] * 5


def test_two_servers_are_compared_without_the_models_of_this_process(events, server):
    with serve(llama_server()) as standard:
        options = asked(max_new_tokens=4, pair="large")  # which cannot run here
        stage, shown = ran(events.stream("me", options, Servers(server.url, standard.url)))
    assert [trace.lane.server_url for trace in shown.comparison.lanes] == [standard.url, server.url]
    assert shown.comparison.baseline == stage["lanes"][0]["name"] and stage["drafters"] is None


def test_what_goes_wrong_is_a_sentence_and_leaves_the_lanes_before_it(events, server):
    stage, shown = ran(events.stream("me", SHORT, Servers("localhost:80")))
    assert "the address" in stage["status"]["text"] and shown is stage["drafters"] is None
    whole = server.routes["/completion"].body
    answers = iter([Answer(whole), Answer(whole), Answer([*whole[:12], BREAK])])  # two are no run: probe and warm-up
    server.routes["/completion"] = lambda *_: next(answers)
    stage, shown = ran(events.stream("me", SHORT, Servers(server.url)))
    assert stage["status"]["kind"] == "error" and "broke off" in stage["status"]["text"]
    assert [trace.finish for trace in shown.comparison.lanes] == ["length", "length", "stopped"]
    assert [row["best"] for row in stage["drafters"]["rows"] if row["note"] == "stopped"] == [False]


def test_visitors_name_no_server(server):
    access = Access(public=True, models=(), limits=FOR_VISITORS)
    strangers = fakes.handlers({"fake": fakes.PAIR}, fakes.Backend, access=access)
    stage, shown = ran(strangers.stream("me", SHORT, Servers(server.url)))
    assert stage["status"] == {"text": NO_SERVERS, "kind": "error", "fraction": None} and shown is None
    assert server.asked == []


def test_an_address_names_no_server():
    query = {name: "http://127.0.0.1:1" for name in SERVERS}
    assert prefill.from_address(query, fakes.PAIRS, fakes.PAIR) == ({}, "")
    assert not set(SERVERS) & set(prefill.defaults(fakes.PAIRS)["usual"])


def test_a_trace_from_a_file_cannot_be_repeated(events):
    stage, shown, *_ = unpacked(asyncio.run(events.open(json.dumps(export.to_json(fakes.comparison(4))).encode())))
    assert not stage["verdict"]["repeatable"]
    with pytest.raises(gr.Error, match="longer kept"):
        events.repeat("me", shown)


def test_what_is_typed_is_read_after_the_other_controls():
    values = list(ASKED.values.values())
    assert controls.typed([*values, " http://127.0.0.1:1 ", None, ""]) == (ASKED, Servers("http://127.0.0.1:1"))
