"""The servers that the page starts: llama.cpp on the starter, on this machine's loopback, as long as the page lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from playground.backends.launch import Running
from playground.backends.llama_server import LOOKUPS, start_llama
from playground.errors import PlaygroundError, Stopped
from playground.models.fetch import starter
from playground.progress import Progress

PLAIN, LOOKUP = "none", LOOKUPS[0]  # as `start_llama` takes them
SLOTS = 8  # the users that a load test begins with
Report = Callable[[Progress], None]


class State(NamedTuple):
    """How a server is. `kind`: "", "busy" while it starts, "ready" or "error". `log`: its end, after a failure."""

    sentence: str = "Not started."
    kind: str = ""
    log: str = ""


@dataclass
class _Server:
    step: str = "Starting"
    stopped: bool = False
    problem: str = ""  # why it did not start
    running: Running | None = None


def start(lookup: str, report: Report) -> Running:
    return start_llama(starter.fetch_gguf(report), report, lookup=lookup, slots=SLOTS)


class StartedServers:
    """One of each kind, PLAIN and LOOKUP, for everybody who has the page open. `start`: starts one, for tests."""

    def __init__(self, start: Callable[[str, Report], Running] = start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def start(self, lookup: str) -> None:
        """Starts one, unless it starts or runs, and returns once it is ready, has failed or was stopped."""
        with self._lock:
            if self.state(lookup).kind in ("busy", "ready"):
                return
            server = self._servers[lookup] = _Server()

        def report(step: Progress) -> None:
            server.step = step.label
            if server.stopped:
                raise Stopped

        try:
            server.running = self._start(lookup, report)
        except Stopped:
            return
        except PlaygroundError as problem:
            server.problem = str(problem)
        if server.running and server.stopped:
            server.running.stop()

    def stop(self, lookup: str) -> None:
        """Ends it, also while it starts."""
        if server := self._servers.pop(lookup, None):
            server.stopped = True
            if server.running:
                server.running.stop()

    def state(self, lookup: str) -> State:
        server = self._servers.get(lookup)
        if server is None:
            return State()
        if server.problem:
            sentence, _, log = server.problem.partition("\n")
            return State(sentence, "error", log)
        if server.running is None:
            return State(server.step, "busy")
        if server.running.process.poll() is not None:
            return State("The server ended. The end of its log:", "error", server.running.log())
        if not server.running.healthy():
            return State(f"{server.running.url} does not answer.", "ready")
        return State(f"{server.running.url} is ready.", "ready")

    def url(self, lookup: str) -> str:
        """The address of the one that runs; "" for none."""
        server = self._servers.get(lookup)
        return server.running.url if server and server.running and server.running.process.poll() is None else ""

    def urls(self) -> list[str]:
        """Of those that run, the plain one's first."""
        return [url for lookup in (PLAIN, LOOKUP) if (url := self.url(lookup))]
