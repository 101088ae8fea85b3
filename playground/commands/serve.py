"""`serve`: a model server on this machine, for lanes and load tests."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from playground.backends.kinds import KINDS, either
from playground.backends.launch import STANDARD, Launch, Running
from playground.commands.arguments import DEFAULT, add_settings, positive
from playground.progress import Progress
from playground.settings import flag


def add(commands: argparse._SubParsersAction) -> None:
    serve = commands.add_parser(
        "serve",
        help=f"start {either([it for it in KINDS if it.launch])} on this machine, with the starter by default",
        description="Starts a model server on this machine's loopback until Ctrl-C; docs/servers.md.",
    )
    kinds = serve.add_subparsers(required=True, metavar="kind")
    for server in KINDS:
        if server.launch:
            _add_kind(kinds, server.kind, server.launch)


def _add_kind(kinds: argparse._SubParsersAction, program: str, launch: Launch) -> None:
    kind = kinds.add_parser(launch.name, help=launch.help)
    kind.set_defaults(command=partial(_serve, launch))
    kind.add_argument(flag(launch.model.name), metavar=launch.model.metavar, help=launch.model.help)
    _, explained, metavar, _ = launch.speculation
    methods = [STANDARD, *launch.methods] if launch.methods else None
    kind.add_argument(
        flag(launch.speculation.name), choices=methods, default=STANDARD, metavar=metavar, help=f"{explained} {DEFAULT}"
    )
    if launch.lookahead:
        add_settings(kind, "lookahead")
    for name, explained, metavar, default in launch.numbers:
        kind.add_argument(flag(name), type=positive, default=default, metavar=metavar, help=explained)
    kind.add_argument("extra", nargs="*", metavar="OPTION", help=f"after --: more options of {program}")
    kind.add_argument("--port", type=positive, metavar="N", help="port (default: a free one)")


def _serve(launch: Launch, options: argparse.Namespace) -> None:
    names = [launch.speculation.name, *(number.name for number in launch.numbers), "extra", "port"]
    names += ["lookahead"] * launch.lookahead
    model = getattr(options, launch.model.name)
    _until_interrupted(launch.start(model, _say, **{name: getattr(options, name) for name in names}))


def _until_interrupted(server: Running) -> None:
    print(f"{server.url} is ready. Ctrl-C ends it.", flush=True)
    try:
        server.process.wait()
        print(f"playground: the server ended. The end of its log:\n{server.log()}", file=sys.stderr)
    finally:
        server.stop()


def _say(step: Progress) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{step.label}\r", end="", file=sys.stderr, flush=True)
