"""Servers that the page starts, with a process that only sleeps in their place."""

from __future__ import annotations

import sys
import threading

import pytest

from playground.backends.launch import Running
from playground.errors import PlaygroundError
from playground.progress import Progress
from playground.ui.serve import LOOKUP, PLAIN, StartedServers, shown_states

SLEEP = [sys.executable, "-c", "import time; print('loading tides', flush=True); time.sleep(60)"]


class Server(Running):
    def healthy(self) -> bool:
        return True


@pytest.fixture
def server():
    running = Server(SLEEP, 1, {})
    yield running
    running.stop()


def test_a_server_is_started_once_shown_and_stopped(server):
    started = []
    own = StartedServers(lambda lookup, tell: started.append(lookup) or server)
    assert own.state(PLAIN) == ("Not started.", "", "") and own.urls() == []
    own.start(PLAIN)
    own.start(PLAIN)
    assert started == [PLAIN] and own.urls() == ["http://127.0.0.1:1"]
    shown, start, stop, *_, timer = shown_states(own)
    assert "http://127.0.0.1:1 is ready." in shown and not start["interactive"] and stop["interactive"]
    assert timer.active
    own.stop(PLAIN)
    assert server.process.poll() is not None and own.urls() == []


def test_what_does_not_start_or_ends_shows_the_end_of_its_log(server):
    def fail(lookup, tell):
        raise PlaygroundError("The server ended while it started. The end of its log:\n<b>no tides</b>")

    own = StartedServers(fail)
    own.start(LOOKUP)
    *_, shown, start, _, timer = shown_states(own)
    assert 'role="alert"' in shown and "&lt;b&gt;no tides" in shown and start["interactive"] and not timer.active
    own = StartedServers(lambda lookup, tell: server)
    own.start(LOOKUP)
    server.stop()
    assert own.state(LOOKUP).sentence.startswith("The server ") and own.urls() == []


def test_a_start_can_be_stopped():
    told = threading.Event()

    def start(lookup, tell):
        while True:
            tell(Progress("Fetching the starter"))
            told.set()

    own = StartedServers(start)
    thread = threading.Thread(target=own.start, args=(LOOKUP,))
    thread.start()
    assert told.wait(60) and own.state(LOOKUP) == ("Fetching the starter", "busy", "")
    own.stop(LOOKUP)
    thread.join(60)
    assert not thread.is_alive() and own.state(LOOKUP).sentence == "Not started."
