"""`engines`: one drafter here and in model servers, on the same prompts: does each accept as much of its drafts?"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from playground.backends.kinds import programs
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair
from playground.commands.progress_bar import progress_bar
from playground.commands.servers import add_model_name
from playground.errors import check
from playground.settings import flag

if TYPE_CHECKING:  # torch would slow every command down
    from playground.backends.base import Backend
    from playground.lane import Lane
    from playground.trace import Trace


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
    add_model_name(parser)
    add_settings(parser, "lookahead", "max_new_tokens")
    parser.add_argument("--suite", default="examples", metavar="NAME", help="a suite's name, or a file of prompts")
    parser.add_argument("--per-category", type=int, default=0, metavar="N", help="prompts of each category; 0 for all")
    parser.add_argument(
        "--traces", type=Path, metavar="FILE", help="append the traces of each lane that ended to FILE, one a line"
    )


def _engines(options: argparse.Namespace) -> None:
    from playground.backends.connect import server_lanes
    from playground.backends.local import LocalBackend
    from playground.experiments import questions
    from playground.experiments.compare import decode
    from playground.experiments.events import Progress
    from playground.experiments.record import append_traces
    from playground.experiments.watch import Watch
    from playground.lane import LOCAL, assisted_lane
    from playground.models.store import ModelStore
    from playground.views import engine_table

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
    print(engine_table.table(found).text())
