"""The kinds of model server, which of them answers at an address, and lanes of servers that run one at a time.

They are llama-server, vLLM, any OpenAI-compatible one, and those that other packages add; docs/add-a-backend.md shows
how to add one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from playground.backends.http import KEY, Http, NotFound
from playground.backends.launch import Running
from playground.backends.llama_server import LlamaServer
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerBackend, ServerRun, counters
from playground.backends.vllm import VllmServer
from playground.errors import PlaygroundError, check
from playground.lane import LOCAL, STANDARD, Lane, Request
from playground.metrics.load import Counts
from playground.plugins import load_plugins
from playground.progress import Progress
from playground.trace import Environment

# In the order in which they are tried. OpenAiServer is not listed: it is the default for any other server.
KINDS: list[type[ServerBackend]] = [LlamaServer, VllmServer]


def _add(kind: type[ServerBackend], package: str) -> None:
    check(isinstance(kind, type) and issubclass(kind, ServerBackend), "it is no subclass of ServerBackend")
    check(not inspect.isabstract(kind), f"it lacks {', '.join(sorted(kind.__abstractmethods__))}")
    taken = _names(kind) & _names(OpenAiServer).union(*map(_names, KINDS))
    check(not taken, f"there is a server named {' and '.join(sorted(taken))} already")
    KINDS.append(kind)


def _names(kind: type[ServerBackend]) -> set[str]:
    """Returns the name of the program, and that of the command that starts it."""
    return {kind.kind, kind.launch.name} if kind.launch else {kind.kind}


load_plugins("playground.backends", _add, first="playground_servers:KINDS")


def programs() -> str:
    """Returns the names of all kinds, such as "llama-server, vLLM or OpenAI-compatible server"."""
    every: list[type[ServerBackend]] = [*KINDS, OpenAiServer]
    return either(every)


def either(kinds: Sequence[type[ServerBackend]]) -> str:
    """Joins the names of two or more kinds, such as "llama-server or vLLM"."""
    *first, last = (kind.kind for kind in kinds)
    return f"{', '.join(first)} or {last}"


def kind_of(http: Http, listing: Sequence[Mapping[str, Any]]) -> type[ServerBackend]:
    """Returns the kind of server that has this listing at /v1/models; by default an OpenAI-compatible one."""
    for kind in KINDS:
        with suppress(PlaygroundError):  # it may ask for a path that other servers do not have
            if kind.is_at(http, listing):
                return kind
    return OpenAiServer


def counts_of(text: str) -> Counts:
    """Reads the text at /metrics of a server of any kind.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    counted = [kind for kind in KINDS if kind.counter_names]
    for kind in counted:
        if kind.counter_names and f"\n{kind.counter_names.prefix}" in f"\n{text}":
            return counters(text, kind.counter_names)
    raise PlaygroundError(f"The server's /metrics has no counters of {either(counted)}.")


class Compared(NamedTuple):
    """The lanes of a comparison, the servers' backends by the name in `Lane.backend`, and the baseline's name."""

    lanes: list[Lane]
    backends: dict[str, ServerBackend]
    baseline: str


@dataclass(frozen=True)
class Servers:
    """The servers of a comparison, as the user typed them. They are asked only when the comparison runs.

    Attributes:
        server: the address of the server to compare; "" for none.
        baseline_server: the address of the server to compare with; "" for the standard lane of this process.
        model: the name of the model; "" if each server has only one.
        lookahead: the lookahead of requests to a llama-server that obeys it; None is the default.
    """

    server: str = ""
    baseline_server: str = ""
    model: str = ""
    lookahead: int | None = None

    @property
    def urls(self) -> list[str]:
        """The addresses, the baseline's first."""
        return [url for url in (self.baseline_server, self.server) if url]

    def with_local(self, local: Sequence[Lane]) -> Compared:
        """Returns the servers' lanes with those of this process: the baseline first, the compared server last.

        Raises:
            PlaygroundError: see `server_lanes`.
        """
        lanes, backends = server_lanes(self.urls, self.model, self.lookahead)
        if not self.baseline_server:
            return Compared([*local, *lanes], backends, STANDARD)
        return Compared([lanes[0], *local, *lanes[1:]], backends, lanes[0].name)


NONE = Servers()


def connect(url: str, model: str = "") -> ServerBackend:
    """Returns the backend for the server at an address. Its key comes from the environment variable KEY.

    Args:
        model: the name of the model; "" if the server has only one.

    Raises:
        PlaygroundError: nothing answers there, it is no model server, it refuses the key, or it serves no such model.
    """
    http = Http(url, os.environ.get(KEY, ""))
    listing = _models(http)
    kind = kind_of(http, listing)
    return kind(http, _chosen(kind.models(listing), model, http.url))


def server_lanes(
    urls: Sequence[str], model: str = "", lookahead: int | None = None
) -> tuple[list[Lane], dict[str, ServerBackend]]:
    """Returns a lane for each server, and the backends by the name in `Lane.backend`.

    Args:
        lookahead: the lookahead of requests to a llama-server that obeys it; None is the default.

    Raises:
        PlaygroundError: see `connect`; or two addresses are the same.
    """
    lanes: list[Lane] = []
    backends: dict[str, ServerBackend] = {}
    for url in urls:
        server = connect(url, model)
        check(server.name not in backends, f"{server.http.address} is named twice. Give two servers.")
        lanes.append(server.lane(lookahead, taken=lanes))
        backends[server.name] = server
    return lanes, backends


def connected(lanes: Sequence[Lane]) -> dict[str, ServerBackend]:
    """Returns the backends of lanes that servers decoded before.

    Raises:
        PlaygroundError: see `connect`.
    """
    in_servers = {lane.backend: lane for lane in lanes if lane.backend != LOCAL}
    return {name: connect(lane.server_url, lane.target) for name, lane in in_servers.items()}


def _models(http: Http) -> list[dict[str, Any]]:
    try:
        data = http.get("/v1/models")
    except NotFound:
        data = {}
    listing = data.get("data") if isinstance(data, dict) else None
    if not isinstance(listing, list) or not listing or not all(isinstance(it, dict) and "id" in it for it in listing):
        raise PlaygroundError(
            f"The server at {http.url} does not list its models at /v1/models, so it is no {programs()}. Check address "
            "and port."
        )
    return listing


def _chosen(names: Mapping[str, list[str]], model: str, url: str) -> str:
    """Returns the name of the model with this name or alias; for "" that of the only model."""
    for name, aliases in names.items():
        if model in (name, *aliases) or (not model and len(names) == 1):
            return name
    problem = f"does not serve {model!r}" if model else "serves several models: choose one with --model"
    raise PlaygroundError(f"The server at {url} {problem}. It serves: {', '.join(names)}.")


Start = Callable[[Callable[[Progress], None]], Running]


class Restarted:
    """A backend of servers that run one at a time, where a machine can hold the model only once.

    It starts a lane's server with the lane's first run, and ends it before another lane's starts.

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
