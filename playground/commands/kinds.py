"""`suite`, `sweep`, `recommend`, `lossless` and `load`: a command for each kind of experiment, from its options."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground.commands import experiment, server_option
from playground.commands.arguments import (
    PRESETS_OWN,
    Joined,
    add_models,
    check_writable,
    chosen_pair,
    text_or_file,
    write,
)
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import Decoders, Option, default_of, options_of, type_of
from playground.settings import flag

if TYPE_CHECKING:  # numpy and transformers would slow every command down
    from playground.results import Result

CODES = (
    "Each part is written to disk as it ends: Ctrl-C stops, and the same command goes on where it was stopped. "
    "Exit code {}; 2: it cannot be run; 130: it was stopped."
)


def add(commands: argparse._SubParsersAction) -> None:
    for kind in KINDS.values():
        parser = commands.add_parser(
            kind.name, help=kind.does.replace("%", "%%"), description=kind.does, epilog=CODES.format(kind.exits)
        )
        parser.set_defaults(command=lambda options, kind=kind: _run(kind, options))
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE; - for stdout")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts to FILE")
        parser.add_argument("--all-tables", action="store_true", help="print the longer tables too")
        parser.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
        if kind.pair:
            add_models(parser)
        if kind.servers:
            server_option.add_servers(parser)
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        for name, option in options_of(kind.options, "terminal").items():
            group = option.group
            groups[group] = groups.get(group) or parser.add_argument_group(group)
            _add(groups[group], kind, name, option)


def _add(parser: argparse._ActionsContainer, kind: Kind, name: str, option: Option) -> None:
    """One option. Left out, it gives None; the options' own default is what the help says."""
    of, several = type_of(kind.options, name)
    setting, default = option.setting, default_of(kind.options, name)
    how: dict[str, Any] = {"type": of, "metavar": {int: "N", float: "X"}.get(of, "NAME" if setting.choices else "TEXT")}
    if of is bool:
        how = {"action": argparse.BooleanOptionalAction}
    elif of not in (int, float, str):  # a Literal
        how = {"choices": [*setting.choices]}
    if several:
        how["nargs"] = "+"
    if setting.json:
        how["metavar"] = "FILE"
    if name == "template":
        how |= {"action": Joined, "metavar": "KEY=VALUE"}
    accepted = f"{setting.range}; " if setting.slider or (setting.choices and "choices" not in how) else ""
    shown = {"True": "on", "": "none", "()": "none", "None": PRESETS_OWN}.get(str(default))
    shown = shown or (" ".join(map(str, default)) if several else f"{default:g}" if of is float else str(default))
    if option.positional:
        parser.add_argument(name, help=setting.help, metavar=name.upper())
        return
    parser.add_argument(
        f"--{option.flag}" if option.flag else flag(name),
        dest=name,
        help=f"{setting.help} ({accepted}default: {shown})".replace("%", "%%"),
        **how,
    )


def _run(kind: Kind, arguments: argparse.Namespace) -> None:
    from playground.views import report

    check_writable(arguments.json)
    check_writable(arguments.html)
    asked = options_of(kind.options, "terminal")
    given = {name: getattr(arguments, name) for name in asked}
    given |= {name: text_or_file(value) for name, value in given.items() if value and asked[name].setting.json}
    values: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in given.items()}
    options = kind.options(**{name: value for name, value in values.items() if value is not None})
    for problem in options.broken_lines():
        print(f"playground: skipped {problem}", file=sys.stderr)
    work, title = kind.work(options, _decoders(kind, arguments, kind.varies(options)))
    device = arguments.device if kind.pair else "auto"
    result = experiment.run(work, title, device=device, again=arguments.again)
    _write(result, title, arguments)
    if arguments.json != Path("-"):
        print(report.text(report.of(result), folded=arguments.all_tables))
    if result.failed:
        sys.exit(1)


def _decoders(kind: Kind, arguments: argparse.Namespace, varies: str) -> Decoders | None:
    if not kind.pair:
        return None
    if kind.servers and server_option.named(arguments):
        baseline, lane = server_option.lanes_of(arguments, varies)
        return Decoders(f"{lane.target} in {lane.backend}", baseline=baseline, server=lane)
    pair = chosen_pair(arguments)
    return Decoders.of(pair if arguments.dtype == "auto" else replace(pair, dtype=arguments.dtype))


def _write(result: Result, title: str, arguments: argparse.Namespace) -> None:
    from playground import results
    from playground.views import page_report

    document = json.dumps(results.to_json(result), indent=1)
    if arguments.json == Path("-"):
        print(document)
    elif arguments.json:
        write(arguments.json, document)
    if arguments.html:
        write(arguments.html, page_report.build(result, title))
