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
Tell = Callable[[Progress], None]


class State(NamedTuple):
    """How a server is. `kind`: "", "busy" while it starts, "ready" or "error". `log`: its end, after a failure."""

    sentence: str = "Not started."
    kind: str = ""
    log: str = ""


@dataclass
class _Own:
    step: str = "Starting"
    stopped: bool = False
    problem: str = ""  # why it did not start
    running: Running | None = None


def start(lookup: str, tell: Tell) -> Running:
    return start_llama(starter.fetch_gguf(tell), tell, lookup=lookup, slots=SLOTS)


class StartedServers:
    """One of each kind, PLAIN and LOOKUP, for everybody who has the page open. `start`: starts one, for tests."""

    def __init__(self, start: Callable[[str, Tell], Running] = start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._owns: dict[str, _Own] = {}

    def start(self, lookup: str) -> None:
        """Starts one, unless it starts or runs, and returns once it is ready, has failed or was stopped."""
        with self._lock:
            if self.state(lookup).kind in ("busy", "ready"):
                return
            own = self._owns[lookup] = _Own()

        def tell(step: Progress) -> None:
            own.step = step.label
            if own.stopped:
                raise Stopped

        try:
            own.running = self._start(lookup, tell)
        except Stopped:
            return
        except PlaygroundError as problem:
            own.problem = str(problem)
        if own.running and own.stopped:
            own.running.stop()

    def stop(self, lookup: str) -> None:
        """Ends it, also while it starts."""
        if own := self._owns.pop(lookup, None):
            own.stopped = True
            if own.running:
                own.running.stop()

    def state(self, lookup: str) -> State:
        own = self._owns.get(lookup)
        if own is None:
            return State()
        if own.problem:
            sentence, _, log = own.problem.partition("\n")
            return State(sentence, "error", log)
        if own.running is None:
            return State(own.step, "busy")
        if own.running.process.poll() is not None:
            return State("The server ended. The end of its log:", "error", own.running.log())
        if not own.running.healthy():
            return State(f"{own.running.url} does not answer.", "ready")
        return State(f"{own.running.url} is ready.", "ready")

    def url(self, lookup: str) -> str:
        """The address of the one that runs; "" for none."""
        own = self._owns.get(lookup)
        return own.running.url if own and own.running and own.running.process.poll() is None else ""

    def urls(self) -> list[str]:
        """Of those that run, the plain one's first."""
        return [url for lookup in (PLAIN, LOOKUP) if (url := self.url(lookup))]
