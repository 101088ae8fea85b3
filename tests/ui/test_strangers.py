"""Promises to and about strangers, tried from outside: without a browser, against the page that they would reach."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Iterator
from typing import Any

import gradio as gr
import httpx
import pytest

from playground.hosting import turns
from playground.hosting.access import FOR_VISITORS, Access
from playground.hosting.turns import address_of
from playground.ui.compare.controls import SERVERS
from tests.ui import fakes
from tests.ui.driven import unpacked
from tests.ui.test_controls import ASKED
from tests.ui.test_doors import opened
from tests.ui.test_events import endless

PUBLIC = Access(public=True, models=(), limits=FOR_VISITORS)
# What a program may send to each kind of control to have an address asked. States keep their own value.
LURES = {"textbox": 0, "dropdown": 0, "json": 0, "html": 0, "file": 1, "uploadbutton": 1, "number": 1.0, "slider": 1.0}


class Listener:
    """Counts who connects to it."""

    def __init__(self) -> None:
        self.calls, self.called = 0, threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.calls += 1
            self.called.set()
            connection.close()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with opened() as client:
        yield client


def lured(kind: str, url: str) -> Any:
    lures = [url, {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}}]
    lure = LURES.get(kind)
    return lures[lure] if isinstance(lure, int) else lure


def test_no_address_that_a_visitor_names_is_connected_to(client):
    listener = Listener()
    sent = []
    for path in ("", "servers", "load"):
        config = client.get("/config", params={"page": path} if path else {}).json()
        kinds = {it["id"]: it["type"] for it in config["components"]}
        for event in config["dependencies"]:
            data = [lured(kinds[it], listener.url) for it in event["inputs"]]
            if event["api_name"] in ("stream", "stream_every", "accept"):
                data = [[*ASKED.values.values(), *[listener.url] * len(SERVERS)], ""]
            if not event["backend_fn"] or listener.url not in str(data):
                continue
            sent.append(event["api_name"])
            body = {"data": data, "fn_index": event["id"], "session_hash": "s"}
            if event["queue"] is False:
                client.post("/gradio_api/run/predict", json=body)
            else:
                assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "s"}) as answer:
        assert sum("process_completed" in line for line in answer.iter_lines()) > 10
    for path in (f"file={listener.url}", f"proxy={listener.url}/v1/models", f"proxy={listener.url}"):
        client.get(f"/gradio_api/{path}")
    assert {"stream", "stream_every", "accept", "open"} <= {*sent} and len(sent) > 15
    assert listener.calls == 0
    socket.create_connection(("127.0.0.1", int(listener.url.rsplit(":", 1)[1]))).close()
    assert listener.called.wait(60), "it counts"


def test_another_site_s_name_for_this_machine_is_refused_and_in_no_link(serve):
    url = serve(fakes.Backend, Access())
    rebound = {"Host": "evil.example:7860"}
    for path in ("/", "/history", "/config", "/screenshot.png", "/gradio_api/info"):
        answer = httpx.get(url + path, headers=rebound)
        assert answer.status_code == 421 and " evil.example." in answer.text
    assert httpx.post(f"{url}/gradio_api/queue/join", json={}, headers=rebound).status_code == 421
    for header in ("X-Forwarded-Host", "X-Gradio-Server"):
        for path in ("/", "/history", "/config"):
            answer = httpx.get(url + path, headers={header: "http://evil.example"})
            assert answer.status_code == 200 and "evil.example" not in answer.text


def test_ids_of_other_sessions_are_nowhere_to_be_read(client):
    mine = "".join(f"{byte:02x}" for byte in range(30, 46))
    body = {"data": list(ASKED.values.values()), "session_hash": mine}
    event = client.post("/gradio_api/call/compare", json=body).json()["event_id"]
    assert len(event) == 32, "128 bits"
    paths = ["/", "/config", "/robots.txt", "/manifest.json"]
    paths += [
        f"/gradio_api/{it}" for it in ("info", "openapi.json", "queue/status", "startup-events", "app_id", "runs")
    ]
    paths += [
        "/monitoring",
        "/monitoring/summary",
        "/gradio_api/deep_link",
        "/gradio_api/heartbeat/",
        "/gradio_api/file=",
    ]
    for path in paths:
        text = client.get(path).text
        assert mine not in text and event not in text, path
    for guess in (mine[:-1], mine + "0", mine.upper(), "%25", "*", ""):
        answer = client.get("/gradio_api/queue/data", params={"session_hash": guess})
        assert "session_not_found" in answer.text or answer.status_code == 400


def test_a_trace_is_not_opened_for_a_session_that_nobody_reads(client, monkeypatch):
    monkeypatch.setattr(turns, "ARRIVES_S", 0.2)
    comes, waited = turns.Reader.comes, threading.Event()

    async def told(reader: turns.Reader) -> bool:
        try:
            return await comes(reader)
        finally:
            waited.set()

    monkeypatch.setattr(turns.Reader, "comes", told)
    path = client.post("/gradio_api/upload", files={"files": ("trace.json", b"{}")}).json()[0]
    data = [{"path": path, "meta": {"_type": "gradio.FileData"}}]
    body = {"data": data, "fn_index": client.events["open"], "session_hash": "unread"}
    assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    assert waited.wait(60)
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "unread"}) as answer:
        assert "Nobody reads" in "".join(answer.iter_lines())


def test_200_runs_wait_and_the_201st_is_answered_in_words():
    limits = dataclasses.replace(FOR_VISITORS, runs_each=FOR_VISITORS.runs)
    events = fakes.handlers(
        {"fake": fakes.PAIR},
        endless(threading.Event(), threading.Event()),
        access=Access(True, (), limits),
    )

    async def visit() -> str:
        runs = [events.stream(f"session {number}", ASKED) for number in range(FOR_VISITORS.runs)]
        for run in runs:
            await anext(run), await anext(run)
        refused = [unpacked(update) async for update in events.stream("one more", ASKED)]
        for run in runs:
            await run.aclose()
        return refused[-1][0]["status"]["text"]

    assert FOR_VISITORS.runs == 200
    assert "200 runs" in asyncio.run(visit())


def test_behind_a_proxy_on_this_machine_a_visitor_is_the_last_address_that_it_named():
    """The last is the one that the proxy itself saw: what the client wrote before it counts for nothing."""
    with gr.Blocks() as blocks:
        gr.api(_who, api_name="who")
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, _frontend=False)
    found = []
    for named in ("8.8.8.8", "1.2.3.4, 8.8.8.8", "5.6.7.8, 1.2.3.4, 8.8.8.8"):
        answer = httpx.post(f"{url}gradio_api/run/who", json={"data": []}, headers={"X-Forwarded-For": named})
        found.append(answer.json()["data"])
    blocks.close()
    assert found == [["8.8.8.8"]] * 3


def _who(request: gr.Request) -> str:
    return address_of(request)
