"""`suite` and `sweep`: many prompts through several lanes, or through one drafter at several settings."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground.commands import experiment
from playground.commands import server_option as servers
from playground.commands.arguments import (
    ANSWER,
    PRESETS_OWN,
    add_models,
    add_settings,
    check_writable,
    chosen_pair,
    count,
    positive,
    write,
)
from playground.settings import PRESET

if TYPE_CHECKING:  # numpy and transformers would slow every command down
    from playground.experiments.questions import Question
    from playground.experiments.work import Suite, Sweep
    from playground.lane import Lane
    from playground.presets import Pair
    from playground.results import SuiteResult

AXES = ("lookahead", "nodes", "confidence_threshold", "temperature", "prompt_tokens")
EXIT = (
    "Each prompt is written to disk as it ends: Ctrl-C stops, and the same command goes on where it was stopped. "
    "Exit code 0: all prompts ran; 1: some failed; 2: it cannot be run; 130: it was stopped."
)


def add(commands: argparse._SubParsersAction) -> None:
    suite = commands.add_parser(
        "suite",
        help="run many prompts through several drafters, with intervals",
        description="Runs the prompts of a suite through standard decoding and through drafters, interleaved and in "
        "a shuffled order, and prints the speed-up of each with its 95 % interval, by category.",
        epilog=EXIT,
    )
    suite.set_defaults(command=_suite)
    suite.add_argument("--drafters", nargs="+", metavar="NAME", help="drafters to compare (default: all of the pair's)")
    suite.add_argument("--lookaheads", nargs="+", type=positive, metavar="N", help=f"each (default: {PRESETS_OWN})")
    add_settings(suite, "policy", "confidence_threshold", "nodes", default=PRESETS_OWN)
    suite.add_argument("--by-prompt", action="store_true", help="print a table by prompt too")
    _add_common(suite)

    sweep = commands.add_parser(
        "sweep",
        help="run many prompts at several values of one setting, and say which is best",
        description="Runs the prompts of a suite at several values of one setting of a drafter, and prints the "
        "speed-up of each with its 95 % interval: the best value, and all that tie with it.",
        epilog=EXIT,
    )
    sweep.set_defaults(command=_sweep)
    sweep.add_argument("--over", choices=AXES, default=AXES[0], help="the setting (default: %(default)s)")
    sweep.add_argument(
        "--values", nargs="+", type=float, metavar="X", help="its values (default: some over its range); lookahead 0 "
        "is no drafter",
    )  # fmt: skip
    sweep.add_argument("--drafter", metavar="NAME", help=f"what drafts (default: {PRESETS_OWN})")
    add_settings(sweep, *PRESET, default=PRESETS_OWN)
    _add_common(sweep)


def _add_common(parser: argparse.ArgumentParser) -> None:
    servers.add_servers(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE; - for stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts to FILE")
    add_models(parser)
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--suite", default="examples", metavar="SUITE",
        help="a suite's name, or a .jsonl, .csv, .txt or .yaml file; docs/experiments.md (default: %(default)s)",
    )  # fmt: skip
    prompts.add_argument("--per-category", type=positive, metavar="N", help="prompts of each category (default: all)")
    prompts.add_argument("--turns", type=positive, metavar="N", help="turns of each prompt, at most (default: all)")
    prompts.add_argument(
        "--on-error", choices=("stop", "skip"), default="stop",
        help="what a broken line of the file does (default: %(default)s)",
    )  # fmt: skip
    repeats = parser.add_argument_group("repeats")
    repeats.add_argument("--runs", type=positive, default=3, metavar="N", help="of each prompt (default: %(default)s)")
    repeats.add_argument("--order-seed", type=count, default=0, metavar="N", help="of the lanes' order (default: 0)")
    repeats.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
    add_settings(parser.add_argument_group("answer"), *[name for name in ANSWER if name != "system"])


def _suite(options: argparse.Namespace) -> None:
    from playground.experiments.work import Suite
    from playground.lane import assisted_lane
    from playground.views import report

    questions = _questions(options)
    if servers.named(options):
        baseline, lane = servers.lanes_of(options)
        work = Suite(None, (lane,), questions, options.runs, options.order_seed, baseline=baseline)
        title = f"{options.suite} on {lane.target} in {lane.backend}"
    else:
        pair = _pair(options)
        lanes = [
            assisted_lane(pair, drafter, lookahead, options.policy, options.confidence_threshold, options.nodes)
            for drafter in options.drafters or pair.drafters
            for lookahead in options.lookaheads or [pair.lookahead]
        ]
        work = Suite(pair, tuple(lanes), questions, options.runs, options.order_seed, skip=not options.drafters)
        title = f"{options.suite} on {pair.title}"
    result = _run(work, title, options)
    if options.json != Path("-"):
        print(report.text(report.of(result), folded=options.by_prompt))
    _exit(result)


def _sweep(options: argparse.Namespace) -> None:
    from playground.experiments import sweep
    from playground.experiments.work import Sweep
    from playground.lane import assisted_lane
    from playground.views import report

    questions = _questions(options)
    pair: Pair | None = None
    baseline: Lane | None = None
    if servers.named(options):
        baseline, lane = servers.lanes_of(options, options.over)
        where = lane.backend
    else:
        pair = _pair(options)
        if options.over == "lookahead":
            options.policy = options.policy or "constant"  # else it is a bound, not the length of the drafts
        lane = assisted_lane(pair, options.drafter, **{name: getattr(options, name) for name in PRESET})
        where = pair.title
    values = tuple(options.values or sweep.DEFAULTS[options.over])
    work = Sweep(pair, lane, options.over, values, questions, options.runs, options.order_seed, baseline=baseline)
    title = f"{options.over.replace('_', ' ')} of {lane.drafter} on {where}, {options.suite}"
    result = _run(work, title, options)
    if options.json != Path("-"):
        print(report.text(report.of(result)))
    _exit(result.suite)


def _questions(options: argparse.Namespace) -> tuple[Question, ...]:
    from playground.experiments import questions

    check_writable(options.json)
    check_writable(options.html)
    settings = {name: getattr(options, name) for name in ANSWER if name != "system"}
    found, problems = questions.load(
        options.suite, options.per_category, settings, turns=options.turns, on_error=options.on_error
    )
    for problem in problems:
        print(f"playground: skipped {problem}", file=sys.stderr)
    return tuple(found)


def _pair(options: argparse.Namespace) -> Pair:
    """In the chosen number format."""
    pair = chosen_pair(options)
    return pair if options.dtype == "auto" else replace(pair, dtype=options.dtype)


def _run(work: Suite | Sweep, title: str, options: argparse.Namespace) -> Any:
    """Runs it and writes its files."""
    result = experiment.run(work, title, device=options.device, again=options.again)
    _write(result, title, options)
    return result


def _write(result: Any, title: str, options: argparse.Namespace) -> None:
    from playground import results

    document = json.dumps(results.to_json(result), indent=1)
    if options.json == Path("-"):
        print(document)
    elif options.json:
        write(options.json, document)
    if options.html:
        from playground.views import page_report

        write(options.html, page_report.build(result, title))


def _exit(result: SuiteResult) -> None:
    if result.failures:
        sys.exit(1)
