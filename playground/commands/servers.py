"""The options that name servers: two whose lanes are compared, or one kind that is started for a command, first without
speculation, then with it."""

from __future__ import annotations

import argparse
import shlex
from functools import partial

from playground.backends.connect import server_lanes
from playground.backends.kinds import KINDS
from playground.backends.launch import HOST, STANDARD, free_port
from playground.backends.restarted import Restarted
from playground.backends.server import UNREPORTED, lane_of
from playground.commands.arguments import DEFAULT
from playground.errors import check
from playground.lane import Lane
from playground.settings import default, flag

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


def add_model_name(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--model", default="", metavar="NAME", help="the name of the server's model, if it has several")


def add_serve(parser: argparse._ActionsContainer) -> None:
    launches = [(kind.kind, kind.launch) for kind in KINDS if kind.launch]
    parser.add_argument(
        "--serve",
        choices=[launch.name for _, launch in launches],
        help="start such a server here without speculation, run its lane, and restart it with speculation",
    )
    parser.add_argument(
        "--serve-model", metavar="MODEL", help="the model, as `serve` takes it for this kind (default: the starter)"
    )
    for program, launch in launches:
        parser.add_argument(
            flag(launch.speculation.name),
            choices=launch.methods or None,
            default=launch.example,
            metavar=launch.speculation.metavar,
            help=f"how {program} speculates {DEFAULT}",
        )
    parser.add_argument(
        "--serve-options",
        default="",
        metavar="TEXT",
        help='more options of the server, such as "--tensor-parallel-size 2" of vLLM',
    )


def served(options: argparse.Namespace) -> tuple[Lane, Lane, Restarted]:
    """The standard lane and the assisted one, and what runs both. Nothing is started yet."""
    kind, launch = next((kind, kind.launch) for kind in KINDS if kind.launch and kind.launch.name == options.serve)
    port = free_port()
    how = {"lookahead": options.lookahead or default("lookahead")} if launch.lookahead else {}
    lane = partial(lane_of, kind.kind, f"http://{HOST}:{port}", launch.served_name(options.serve_model), **how)
    speculation = getattr(options, launch.speculation.name)
    extra = shlex.split(options.serve_options)
    start = partial(launch.start, options.serve_model, extra=extra, port=port, **how)
    lanes = lane(drafter="none"), lane(drafter=speculation if launch.methods else UNREPORTED)
    return *lanes, Restarted(
        {
            each: partial(start, **{launch.speculation.name: value})
            for each, value in zip(lanes, (STANDARD, speculation), strict=True)
        }
    )
