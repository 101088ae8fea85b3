"""`recommend`: which drafter, and how deep, for these prompts on this machine?"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from playground.commands import experiment
from playground.commands import server_option as servers
from playground.commands.arguments import (
    ANSWER,
    DEFAULT,
    add_models,
    add_settings,
    check_writable,
    chosen_pair,
    count,
    positive,
    write,
)


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "recommend",
        help="say which drafter and lookahead to use for these prompts on this machine",
        description="Screens all drafters of the pair, refines the fastest over lookaheads, and runs what it chooses "
        "again: the shallowest setting within noise of the fastest, or no drafter. Prints it with its speed-up, and as "
        "settings of other engines.",
        epilog="Each prompt is written to disk as it ends: Ctrl-C stops, and the same command goes on where it was "
        "stopped. Exit code 0: there is a recommendation, which may be no drafter; 2: it cannot be run; 130: it was "
        "stopped.",
    )
    parser.set_defaults(command=_recommend)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE; - for stdout")
    add_models(parser)
    parser.add_argument("--drafters", nargs="+", metavar="NAME", help="drafters to try (default: all of the pair's)")
    servers.add_servers(parser)
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--suite", default="examples", metavar="SUITE", help=f"a suite's name, or a file {DEFAULT}")
    prompts.add_argument("--per-category", type=positive, metavar="N", help="prompts of each category (default: all)")
    repeats = parser.add_argument_group("repeats")
    repeats.add_argument("--order-seed", type=count, default=0, metavar="N", help=f"of the lanes' order {DEFAULT}")
    repeats.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
    add_settings(parser.add_argument_group("answer"), *[name for name in ANSWER if name != "system"])


def _recommend(options: argparse.Namespace) -> None:
    from playground import results
    from playground.experiments.questions import questions
    from playground.experiments.recommend import candidates
    from playground.experiments.work import Recommend
    from playground.views import report

    check_writable(options.json)
    settings = {name: getattr(options, name) for name in ANSWER if name != "system"}
    asked = questions(options.suite, options.per_category, settings, turns=1)
    if servers.named(options):
        baseline, lane = servers.lanes_of(options, "lookahead")
        work = Recommend(None, (lane,), tuple(asked), options.order_seed, baseline=baseline)
        where = lane.backend
    else:
        pair = chosen_pair(options)
        pair = pair if options.dtype == "auto" else replace(pair, dtype=options.dtype)
        work = Recommend(pair, tuple(candidates(pair, options.drafters or ())), tuple(asked), options.order_seed)
        where = pair.title
    title = f"Recommend for {options.suite} on {where}"
    result: Any = experiment.run(work, title, device=options.device, again=options.again)
    document = json.dumps(results.to_json(result), indent=1)
    if options.json == Path("-"):
        print(document)
        return
    if options.json:
        write(options.json, document)
    print(report.text(report.of(result)))
