"""Compares the acceptance of one drafter in several engines on the same prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from playground import metrics
from playground.backends.base import Backend
from playground.backends.connect import programs, server_lanes
from playground.backends.local import LocalBackend
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair
from playground.commands.progress_bar import progress_bar
from playground.errors import check
from playground.experiments import questions
from playground.experiments.events import Progress, Watch
from playground.experiments.journal import append_traces
from playground.experiments.race import decode
from playground.format import UNKNOWN, number, percent
from playground.lane import LOCAL, Lane, assisted_lane
from playground.models.store import ModelStore
from playground.settings import flag
from playground.trace import Trace
from playground.views.table import Table

POSITIONS = 3  # positions in the table


class Counted(NamedTuple):
    """A lane's counts over all prompts. `drafts`: verify steps that had a draft. `length`: 1 + accepted ÷ drafts,
    vLLM's mean acceptance length, which neither the prefill nor steps without a draft change. `at`: the share of drafts
    accepted up to each position. None or empty where the engine does not report the steps."""

    tokens: int
    drafts: int | None
    drafted: int | None
    accepted: int | None
    length: float | None
    at: tuple[float, ...]


def counted(traces: Sequence[Trace]) -> Counted:
    """Counts a lane. `traces`: its traces, one for each prompt."""
    found = [metrics.measure(trace) for trace in traces]
    tokens = sum(m.tokens or 0 for m in found)
    if any(trace.totals for trace in traces):
        drafted, hits = ([getattr(m, name) for m in found] for name in ("drafted", "accepted"))
        known = None not in (*drafted, *hits)
        return Counted(tokens, None, sum(drafted) if known else None, sum(hits) if known else None, None, ())
    rounds = [round_ for trace in traces for round_ in trace.rounds if round_.drafted]
    accepted, drafts = sum(len(round_.accepted) for round_ in rounds), len(rounds)
    at = metrics.acceptance_by_position(rounds)
    return Counted(
        tokens,
        drafts,
        sum(len(round_.drafted) for round_ in rounds),
        accepted,
        1 + accepted / drafts if drafts else None,
        tuple(each.accepted / drafts for each in at[:POSITIONS]),
    )


def table(lanes: Sequence[Sequence[Trace]]) -> Table:
    """Returns a table with a row for each lane, compared with the first. `lanes`: the traces of each, on the same
    prompts in the same order."""
    first = counted(lanes[0])
    rows = []
    for traces in lanes:
        it = counted(traces)
        same = sum(metrics.first_difference(a, b) is None for a, b in zip(lanes[0], traces, strict=True))
        over = it.length / first.length - 1 if it.length and first.length else None
        at = [percent(share) for share in it.at]
        rows.append(
            (
                traces[0].lane.name, f"{it.tokens:,}", _count(it.drafts), _count(it.drafted), _count(it.accepted),
                number(it.length), UNKNOWN if over is None else f"{over:+.0%}",
                *at, *[UNKNOWN] * (POSITIONS - len(at)), f"{same} of {len(traces)}",
            )
        )  # fmt: skip
    columns = (
        "engine", "tokens", "drafts", "drafted", "accepted", "1 + accepted ÷ drafts", "beside the first",
        *(f"at {position}" for position in range(1, POSITIONS + 1)), "same text",
    )  # fmt: skip
    return Table("One drafter, several engines", columns, tuple(rows), numbers=len(columns) - 1)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "engines",
        help="what one drafter is accepted for here and in model servers",
        description="Runs the same prompts, greedily, through a drafter of this process and through servers that serve "
        "the same target and drafter, all at the same time, and prints what each accepted: counts, no speeds. "
        "docs/servers.md explains the differences.",
    )
    parser.set_defaults(command=_engines)
    add_models(parser)
    parser.add_argument("--drafter", metavar="NAME", help="of this process (default: the preset's)")
    parser.add_argument("--server", nargs="+", default=[], metavar="URL", help=f"each a {programs()}")
    parser.add_argument("--model", default="", metavar="NAME", help="the name of a server's model, if it has several")
    add_settings(parser, "lookahead", "max_new_tokens")
    parser.add_argument("--suite", default="examples", metavar="NAME", help="a suite's name, or a file of prompts")
    parser.add_argument("--per-category", type=int, default=0, metavar="N", help="prompts of each category; 0 for all")
    parser.add_argument(
        "--traces", type=Path, metavar="FILE", help="append the traces of each lane that ended to FILE, one a line"
    )


def _engines(options: argparse.Namespace) -> None:
    check(bool(options.server), f"Give the addresses of servers with {flag('server')}.")
    check_writable(options.traces)
    pair = chosen_pair(options)
    settings = {"max_new_tokens": options.max_new_tokens}
    asked, _ = questions.load(options.suite, options.per_category or None, settings, turns=1)
    lanes, backends = server_lanes(options.server, options.model, options.lookahead)
    lanes = [assisted_lane(pair, options.drafter, options.lookahead, policy="constant"), *lanes]
    everywhere: dict[str, Backend] = {
        LOCAL: LocalBackend(ModelStore(), pair, options.dtype, options.device),
        **backends,
    }
    with progress_bar(options.max_new_tokens) as draw:
        watch, writing = Watch(draw), Lock()

        def answers(lane: Lane) -> list[Trace]:
            backend = everywhere[lane.backend]
            backend.load(lane, draw)
            traces = []
            for number, question in enumerate(asked):
                draw(Progress(f"{lane.name}: prompt {number + 1} of {len(asked)}", number / len(asked)))
                traces.append(decode(backend, lane, question.request, watch))
            if options.traces:
                with writing:
                    append_traces(str(options.traces), traces)
            return traces

        with ThreadPoolExecutor(len(lanes)) as pool:  # nothing is timed
            found = list(pool.map(answers, lanes))
    print(table(found).text())
