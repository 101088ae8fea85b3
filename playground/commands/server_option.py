"""Experiments through two servers: their options, and the lanes that these name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from playground.backends.connect import server_lanes
from playground.commands.arguments import add_model_name
from playground.errors import check

if TYPE_CHECKING:
    from playground.lane import Lane

UNKNOWN = ("nodes", "confidence_threshold")  # what no server can be asked for


def add_servers(parser: argparse.ArgumentParser) -> None:
    servers = parser.add_argument_group("servers", "instead of a pair: two servers; docs/servers.md")
    servers.add_argument("--server", metavar="URL", help="the server to compare")
    servers.add_argument("--baseline-server", metavar="URL", help="the same model without speculation")
    add_model_name(servers)


def named(options: argparse.Namespace) -> bool:
    return bool(options.server or options.baseline_server)


def lanes_of(options: argparse.Namespace, over: str = "") -> list[Lane]:
    """The lanes of both servers, the baseline's first. `over`: the setting whose values are to be compared."""
    check(bool(options.server and options.baseline_server), "Give both --server and --baseline-server.")
    check(over not in UNKNOWN, f"No server can be asked for another {over.replace('_', ' ')}. Sweep the lookahead.")
    lanes, backends = server_lanes([options.baseline_server, options.server], options.model)
    server = backends[lanes[1].backend]
    check(
        over != "lookahead" or server.obeys_lookahead,
        f"{server.name} does not draft as many tokens as a request asks for. Start it with each lookahead in turn, and "
        "compare these with `suite`.",
    )
    return lanes
