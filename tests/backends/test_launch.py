"""Servers that are started here: a real llama.cpp on the starter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import httpx
import pytest

from playground import metrics
from playground.backends import launch, llama_server
from playground.backends.connect import connect
from playground.backends.llama_server import start_llama
from playground.backends.vllm import start_vllm
from playground.errors import PlaygroundError
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Request
from playground.models.fetch import starter

PROMPT = "Say the line “waves and waves and waves” four times."


@pytest.fixture(scope="module")
def servers():
    """A plain llama.cpp server, and one that looks the last tokens up."""
    gguf = starter.fetch_gguf(lambda step: None)
    options = {"slots": 2, "context": 512, "threads": 1}
    started = []
    try:
        for lookup in ("none", "ngram-simple"):
            started.append(start_llama(gguf, lambda step: None, lookup=lookup, **options))
        yield started
    finally:
        for server in started:
            server.stop()


@pytest.mark.starter
def test_a_real_server_decodes_both_lanes_and_the_lookup_saves_passes(servers):
    plain, lookup = backends = [connect(server.url) for server in servers]
    lanes = [plain.lane(), lookup.lane()]
    assert [lane.drafter for lane in lanes] == ["none", "ngram-simple"]
    comparison = run(
        lanes,
        Request(PROMPT, max_new_tokens=32),
        {backend.name: backend for backend in backends},
        Watch(),
        baseline=lanes[0].name,
    )
    standard, assisted = comparison.lanes
    assert "waves and waves" in standard.text and "waves and waves" in assisted.text
    assert len(standard.rounds) == len(standard.tokens) > 10
    m = metrics.measure(assisted)
    assert m.accepted > 0 and m.verify_passes == m.tokens - m.accepted
    assert standard.prompt_ids == assisted.prompt_ids
    assert all(a.end_s <= b.start_s for a, b in zip(standard.rounds, standard.rounds[1:], strict=False))


@pytest.mark.starter
def test_a_real_server_drafts_with_a_list_of_lookups():
    """With ngram-mod, which drafts nothing shorter than its least, and then another."""
    gguf, types = starter.fetch_gguf(lambda step: None), "ngram-mod,ngram-simple"
    options = {"lookup": "ngram-mod", "lookahead": 48, "slots": 1, "context": 512, "threads": 1}
    server = start_llama(gguf, lambda step: None, **options, extra=["--spec-type", types])
    try:
        backend = connect(server.url)
        lane = backend.lane()
        assert lane.drafter.replace("_", "-") == types
        line = "We count the waves, and the gulls, and the ships that pass the lighthouse at night, one by one. "
        trace = decode(backend, lane, Request(line * 8, chat_template=False, max_new_tokens=96), Watch())
        assert max(len(round_.drafted) for round_ in trace.rounds) == 48
    finally:
        server.stop()


def test_more_options_reach_the_llama_server_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "llama-server").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(PlaygroundError, match="--metrics --rpc other:50052"):
        start_llama(Path("model.gguf"), lambda step: None, extra=["--rpc", "other:50052"])


def test_a_server_ends_when_it_is_stopped():
    port = launch.free_port()
    server = launch.started([sys.executable, "-c", HEALTHY, str(port)], port, {}, lambda step: None)
    assert httpx.get(f"{server.url}/health").status_code == 200
    with pytest.raises(PlaygroundError, match=f"port {port} already"):
        launch.started(["never"], port, {}, lambda step: None)
    server.stop()
    assert server.process.poll() is not None


def test_a_server_ends_with_what_started_it_even_if_that_is_killed():
    port = launch.free_port()
    server = launch.started([sys.executable, "-c", HEALTHY, str(port)], port, {}, lambda step: None)
    server.process.stdin.close()  # as the end of a process does it
    assert server.process.wait(timeout=60) != 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_a_server_that_ends_while_it_starts_shows_its_log():
    command = [sys.executable, "-c", "import sys; sys.exit('no such model: tides.gguf')"]
    with pytest.raises(PlaygroundError, match=r"ended [^$]*tides\.gguf"):
        launch.started(command, launch.free_port(), {}, lambda step: None)


def test_whoever_stops_waiting_ends_the_server():
    def leave(step):
        raise KeyboardInterrupt

    port = launch.free_port()
    server = launch.Running([sys.executable, "-c", "import time; time.sleep(60)"], port, {})
    with pytest.raises(KeyboardInterrupt):
        server.wait_until_ready(leave)
    assert server.process.poll() is not None


@pytest.mark.parametrize("start", [start_llama, start_vllm])
def test_what_is_not_installed_is_named(start, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(llama_server, "find_spec", lambda name: None)
    with pytest.raises(PlaygroundError, match="PATH"):
        start(tmp_path, lambda step: None)


HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
