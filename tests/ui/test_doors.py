"""What no page sends is answered before Gradio keeps it, or writes a traceback about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import gradio as gr
import httpx
import pytest

from playground.errors import check
from playground.experiments.history import History
from playground.experiments.session import Session
from playground.hosting.access import FOR_VISITORS, Access
from playground.hosting.page_head import QuietBlocks
from playground.hosting.turns import REMEMBERED, Turns
from playground.ui import page
from tests.ui import fakes

LONG = "s" * 65
PUBLIC = Access(public=True, models=(), limits=FOR_VISITORS)
JSON = {"content-type": "application/json"}


@contextmanager
def opened() -> Iterator[httpx.Client]:
    """A program that knows the page for strangers."""
    pairs = {"fake": fakes.PAIR}
    blocks = page.build(fakes.Store(), pairs, fakes.PAIR, (), backend_for=fakes.Backend, access=PUBLIC)
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **page.look(PUBLIC), **page.bounds(PUBLIC))
    with httpx.Client(base_url=url, timeout=120) as client:
        config = client.get("/config").json()
        client.events = {it["api_name"]: it["id"] for it in config["dependencies"]}
        client.inputs = {it["api_name"]: len(it["inputs"]) for it in config["dependencies"]}
        yield client
    blocks.close()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with opened() as client:
        yield client


def test_session_ids_that_no_browser_makes_are_refused_on_every_route(client):
    def body(session: object) -> dict:
        return {"data": [], "fn_index": client.events["stop_own"], "session_hash": session}

    paths = ("run/predict", "run/stop_own", "api/predict", "queue/join", "call/compare", "call/v2/compare", "cancel")
    for session in (LONG, "s" * 400_000, "", "a b", "é", 7, ["s"]):
        for path in paths:
            answer = client.post(f"/gradio_api/{path}", json=body(session))
            assert answer.status_code == 400 and "session" in answer.json()["detail"], (path, str(session)[:9])
    for path in (f"heartbeat/{LONG}", f"queue/data?session_hash={LONG}", f"call/compare/{LONG}"):
        assert client.get(f"/gradio_api/{path}").status_code == 400
    assert client.post("/gradio_api/run/predict", json=body("s" * 64)).status_code == 200


def test_a_stop_is_remembered_only_for_a_run_that_is_to_come():
    turns = Turns(PUBLIC, Session(History(None), None))
    for number in range(3 * REMEMBERED):
        turns.stop(f"stranger {number}")
    assert len(turns._begun) == 0
    for number in range(3 * REMEMBERED):
        turns.begin(f"stranger {number}")
        turns.stop(f"stranger {number}")
    assert len(turns._begun) == REMEMBERED
    for number in range(3 * REMEMBERED):
        turns.leave(f"stranger {number}")
    assert len(turns._begun) == 0


def test_a_request_is_no_longer_than_a_prompt_needs(client):
    prompt = json.dumps("🙂" * FOR_VISITORS.prompt)
    body = {"data": [json.loads(prompt)], "fn_index": client.events["stop_own"], "session_hash": "s"}
    assert client.post("/gradio_api/run/predict", json=body).status_code == 200
    body["data"] *= 7
    assert client.post("/gradio_api/queue/join", json=body).status_code == 413


@pytest.mark.parametrize(
    "path",
    ["process_recording", "component_server", "vibe-edit", "dev/reload", "stream/x", "proxy=http://a", "deep_link"],
)
def test_what_the_page_does_not_use_of_gradio_is_closed(client, path):
    for method in ("GET", "POST"):
        assert client.request(method, f"/gradio_api/{path}").status_code == 404
    assert client.get("/monitoring").status_code == client.post("/login").status_code == 404


@pytest.mark.parametrize("path", ["/", "/history", "/config", "/login", "/gradio_api/file=x", "/screenshot.png"])
def test_every_answer_tells_browsers_to_load_nothing_from_elsewhere(client, path):
    said = client.get(path).headers
    assert said["x-content-type-options"] == "nosniff" and said["referrer-policy"] == "same-origin"
    assert "default-src 'self'" in said["content-security-policy"], "tests/browser fails where the page breaks it"
    assert "frame-ancestors" not in said["content-security-policy"] and "x-frame-options" not in said


def test_browsers_keep_the_scripts_that_are_named_by_what_they_hold(client):
    script = re.search(r'src="\./(assets/[^"]+)"', client.get("/").text)[1]
    kept = {path: client.get(path).headers.get("cache-control", "") for path in (script, "/", "/assets/none.js")}
    assert ["immutable" in it for it in kept.values()] == [True, False, False], kept


def test_malformed_requests_and_values_leave_no_traceback(capfd):
    with opened() as logged:  # its server was started under `capfd`, which therefore has what it logs
        sends_what_is_malformed(logged)
        sends_values_that_no_component_takes(logged)
    out, err = capfd.readouterr()
    assert "Traceback" not in err + out


def sends_what_is_malformed(logged: httpx.Client) -> None:
    for content in (
        b"{", b"[" * 9_000, b'{"data":["\xff"]}', b'{"data":[NaN],"fn_index":NaN,"session_hash":"a"}', b"7", b"",
        b'{"data":[],"fn_index":1e999,"session_hash":"a"}', b'{"data":["\\ud800"],"fn_index":0,"session_hash":"a"}',
        b'{"data":[],"fn_index":9999,"session_hash":"a"}', b'{"data":[],"session_hash":"a"}', b'{"data":[]}',
        b'{"data":[],"fn_index":0,"session_hash":"a","event_data":[1]}',
    ):  # fmt: skip
        for path in ("queue/join", "run/predict", "call/compare", "call/nothing", "call/v2/nothing", "cancel"):
            logged.post(f"/gradio_api/{path}", content=content, headers=JSON)
    with logged.stream("GET", "/gradio_api/queue/data?session_hash=nobody") as answer:
        assert '"session_not_found":true' in next(answer.iter_lines())
    with logged.stream("GET", "/gradio_api/call/compare/nothing") as answer:
        assert next(answer.iter_lines()) == "event: error"
    assert logged.post("/gradio_api/upload", files={"files": ("", b"x")}).status_code == 400
    assert logged.get(f"/static/{'x' * 5_000}").status_code == 400


def ended(client: httpx.Client, session: str, sent: list) -> str:
    """The last message on each of these requests through the queue: event, data."""
    for name, data, more in sent:
        body = {"data": data, "fn_index": client.events[name], "session_hash": session, **more}
        assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as answer:
        return "".join(answer.iter_lines())


def sends_values_that_no_component_takes(logged: httpx.Client) -> None:
    anything = ([], ["x"], [1e300], [[[1]]], [{"path": "/etc/passwd"}])
    names = ("stream", "check", "compare", "open", "choose", "finish", "add_opened", "restore", "_cost", "recommend")
    sent = [
        (name, data * logged.inputs[name], {"event_data": {"ids": 7, "lane": [1]}})
        for name in names
        for data in anything
    ]
    text = ended(logged, "s", sent)
    assert text.count('"process_completed"') == len(sent)


def test_a_page_that_is_older_than_the_program_is_to_be_reloaded(client):
    assert "Reload it." in ended(client, "older", [("stream", [["two of", "its values"], ""], {})])


def test_a_fault_in_a_handler_is_logged_once(capfd, caplog):
    with QuietBlocks() as blocks:
        gr.Button().click(lambda: 1 / 0, api_name="fault")
        gr.Button().click(partial(check, False, "The disk is full. <b>Make room.</b>"), api_name="told")
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, _frontend=False)
    with httpx.Client(base_url=url) as client:
        for _ in range(3):
            answer = client.post("/gradio_api/run/fault", json={"data": []})
            assert answer.status_code == 500 and "Internal error" in answer.text
        answer = client.post("/gradio_api/run/told", json={"data": []})
        assert "The disk is full. &lt;b&gt;Make room." in answer.text
    blocks.close()
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert "Traceback" not in capfd.readouterr().err.replace(caplog.text, "")
