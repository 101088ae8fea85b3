"""Finds out which kind of server answers at an address, by asking it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from playground.backends.http import KEY, Http, NotFound
from playground.backends.kinds import kind_of, programs
from playground.backends.server import ServerBackend
from playground.errors import PlaygroundError, check
from playground.lane import LOCAL, STANDARD, Lane


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
    asked = f"does not serve {model!r}" if model else "serves several models: choose one with --model"
    raise PlaygroundError(f"The server at {url} {asked}. It serves: {', '.join(names)}.")
