"""A command for each kind of experiment, made from its options.

It shows progress, Ctrl-C stops it, and the same command resumes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from playground.commands.arguments import (
    add_models,
    add_outputs,
    add_setting,
    check_writable,
    chosen_pair,
    show,
    value_of,
)
from playground.commands.progress_bar import follow
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import options_of
from playground.settings import flag

if TYPE_CHECKING:  # torch would slow every command down
    from playground.experiments.events import Watch
    from playground.experiments.work import Experiment, Work
    from playground.presets import Pair
    from playground.results import Result

CODES = (
    "Each part is written to disk as it ends: Ctrl-C stops it, and the same command resumes it. "
    "Exit code {}; 2: it cannot be run; 130: it was stopped."
)


def add(commands: argparse._SubParsersAction) -> None:
    for kind in KINDS.values():
        parser = commands.add_parser(
            kind.name, help=kind.does.replace("%", "%%"), description=kind.does, epilog=CODES.format(kind.exits)
        )
        parser.set_defaults(command=lambda options, kind=kind: _run(kind, options))
        add_outputs(parser, "the result", "a report with charts")
        parser.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
        if kind.pair:
            add_models(parser)
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        for name, option in options_of(kind.options, "terminal").items():
            group = option.group
            groups[group] = groups.get(group) or parser.add_argument_group(group)
            if option.positional:
                parser.add_argument(name, help=option.setting.help, metavar=name.upper())
                continue
            named, nargs = f"--{option.flag}" if option.flag else flag(name), "+" if option.several else None
            add_setting(groups[group], name, named, option.setting, option.of, option.default, nargs=nargs)


def _run(kind: Kind, arguments: argparse.Namespace) -> None:
    check_writable(arguments.json, arguments.html)
    given = {name: value_of(arguments, name) for name in options_of(kind.options, "terminal")}
    values: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in given.items()}
    options = kind.options(**{name: value for name, value in values.items() if value is not None})
    for problem in options.broken_lines():
        print(f"playground: skipped {problem}", file=sys.stderr)
    named = bool(kind.pair and (arguments.pair or arguments.target))
    work, title = kind.work(options, kind.decoders(options, lambda: _pair(arguments), named))
    how = dict(device=arguments.device, by_turns=not arguments.one_after_the_other) if kind.pair else {}
    asked = {"pair": work.pair.name if work.pair else None, **values}
    result = _result(work, title, asked, how, again=arguments.again)
    show(result, arguments, title)
    if result.failed:
        sys.exit(1)


def _result(work: Experiment, title: str, values: Mapping[str, Any], how: Mapping[str, Any], *, again: bool) -> Result:
    """Runs the experiment, which the history lists. Exits with 130 if it was stopped.

    Args:
        values: of the options; see `Session.start`.
        how: arguments of `LocalBackend`.
        again: whether to start again even if the same experiment was stopped before.

    Raises:
        PlaygroundError: it failed.
    """
    from playground.backends.local import LocalBackend
    from playground.experiments.history import open_history
    from playground.experiments.session import Session
    from playground.lane import LOCAL
    from playground.models.store import ModelStore

    store, history = ModelStore(), open_history()

    def decode(pair: Pair | None, work: Work, watch: Watch) -> None:
        work({LOCAL: LocalBackend(store, pair, **how)} if pair else {}, watch)

    session = Session(history, decode)
    name = None if again else session.unfinished(work)
    if name:
        print(f"playground: going on with {name}, which was stopped (--again begins anew)", file=sys.stderr)
        session.resume(name)
    else:
        name = session.start(work, title, values)
    if error := follow(session.runs[name]):
        raise error
    result, entry = session.result(name), session.entry(name)
    if entry.status == "stopped":
        resumable = "; the same command resumes it" if history.permanent and history.work(name) else ""
        print(f"playground: stopped, {entry.fraction:.0%} done{resumable}", file=sys.stderr)
        sys.exit(130)
    assert result, "it ended by itself"
    return result


def _pair(arguments: argparse.Namespace) -> Pair:
    pair = chosen_pair(arguments)
    return pair if arguments.dtype == "auto" else replace(pair, dtype=arguments.dtype)
