"""The commands `serve` and `monitor`, and the options of a kind of server that is started for a command.

It is started first without speculation, then with it. `serve` starts a model server on this machine; `monitor` watches
one that has traffic.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from functools import partial

from playground.backends.connect import KINDS, Restarted, either, programs
from playground.backends.launch import HOST, STANDARD, Launch, free_port
from playground.backends.server import UNREPORTED, lane_of
from playground.commands.arguments import DEFAULT, add_settings, positive, positive_number
from playground.lane import Lane
from playground.progress import Progress
from playground.settings import default, flag


def add_serve(parser: argparse._ActionsContainer) -> None:
    """Adds the options that start a server for the command."""
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
    """Returns the standard lane and the assisted one, and the backend of both. Nothing is started yet."""
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


def add_serve_command(commands: argparse._SubParsersAction) -> None:
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
    for name, explained, metavar, number in launch.numbers:
        kind.add_argument(flag(name), type=positive, default=number, metavar=metavar, help=explained)
    kind.add_argument("extra", nargs="*", metavar="OPTION", help=f"after --: more options of {program}")
    kind.add_argument("--port", type=positive, metavar="N", help="port (default: a free one)")


def _serve(launch: Launch, options: argparse.Namespace) -> None:
    names = [launch.speculation.name, *(number.name for number in launch.numbers), "extra", "port"]
    names += ["lookahead"] * launch.lookahead
    model = getattr(options, launch.model.name)
    server = launch.start(model, _say, **{name: getattr(options, name) for name in names})
    print(f"{server.url} is ready. Ctrl-C ends it.", flush=True)
    try:
        server.process.wait()
        print(f"playground: the server ended. The end of its log:\n{server.log()}", file=sys.stderr)
    finally:
        server.stop()


def _say(step: Progress) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{step.label}\r", end="", file=sys.stderr, flush=True)


def add_monitor(commands: argparse._SubParsersAction) -> None:
    monitor = commands.add_parser(
        "monitor",
        help="acceptance, throughput and queue of a server that serves traffic",
        description="Reads a server's /metrics at intervals until Ctrl-C. It sends no prompt.",
    )
    monitor.set_defaults(command=_monitor)
    monitor.add_argument("url", metavar="URL", help=f"{programs()}; llama-server needs --metrics")
    monitor.add_argument(
        "--every", type=positive_number, default=5.0, metavar="S", help=f"seconds between lines {DEFAULT}"
    )
    monitor.add_argument("--count", type=positive, metavar="N", help="end after N lines (default: Ctrl-C)")
    monitor.add_argument("--json", action="store_true", help="print each line as JSON")


def _monitor(options: argparse.Namespace) -> None:
    from playground.experiments.events import Watch
    from playground.experiments.kinds.load import watched
    from playground.metrics.load import Window
    from playground.views import monitor as serving

    said, windows = list[str](), list[Window]()
    if not options.json:
        print(serving.readings([]).text())
    for number, window in enumerate(watched(options.url, options.every, Watch()), start=1):
        if options.json:
            print(json.dumps(asdict(window)), flush=True)
        else:
            print(serving.readings([window]).text().splitlines()[-1], flush=True)
            windows = [*(it for it in windows if it.drafted), window][-2:]
            if (new := serving.advice(windows)) != said:
                said = new
                print("\n".join(f"         {sentence}" for sentence in said), flush=True)
        if number == options.count:
            break
