"""Lanes of servers that run one at a time, where a machine can hold the model only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from playground.backends.connect import connect
from playground.backends.launch import Running
from playground.backends.server import ServerBackend, ServerRun
from playground.lane import Lane, Request
from playground.progress import Progress
from playground.trace import Environment

Start = Callable[[Callable[[Progress], None]], Running]


class Restarted:
    """Starts a lane's server with the lane's first run, and ends it before another lane's starts.

    Args:
        starts: functions that start each lane's server, at the lane's address.
    """

    by_turns = False

    def __init__(self, starts: Mapping[Lane, Start]) -> None:
        self._starts = starts
        self._tell: Callable[[Progress], None] = lambda step: None
        self._lane: Lane | None = None  # the lane whose server runs
        self._running: Running | None = None
        self._server: ServerBackend | None = None

    def load(self, lane: Lane, progress: Callable[[Progress], None]) -> None:
        """Stores `progress` for the start of the server, which is with its first run."""
        self._tell = progress

    def run(self, lane: Lane, request: Request) -> ServerRun:
        """Starts the lane's server if it does not run, and prepares a run.

        Raises:
            PlaygroundError: the lane's server does not start, or the request does not fit.
        """
        if lane != self._lane:
            self._start(lane).warm_up(lane, request, lambda: False)
        assert self._server
        return self._server.run(lane, request)

    def warm_up(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        """Does nothing: each start ends with a warm-up."""

    def describe(self, lane: Lane) -> Environment:
        assert self._server, "read after a run"
        return self._server.describe(lane)

    def close(self) -> None:
        """Ends the running server."""
        if self._running:
            self._running.stop()
        self._lane = self._running = None

    def _start(self, lane: Lane) -> ServerBackend:
        self.close()
        self._running = self._starts[lane](self._tell)
        self._server, self._lane = connect(self._running.url, lane.target), lane
        return self._server
