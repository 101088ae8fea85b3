"""What the playground measures of itself, and of drafters over many prompts."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from playground.commands.arguments import DEFAULT, add_models, check_writable, chosen_pair, positive, write
from playground.drafting_methods import POLICIES
from playground.errors import PlaygroundError
from playground.experiments.events import Event, PromptDone

if TYPE_CHECKING:  # its numpy would slow every command down
    from playground.results import BenchResult, SuiteResult

WITH_SUITE = (
    "drafters",
    "lookaheads",
    "policy",
    "confidence_threshold",
    "nodes",
    "per_category",
    "temperature",
    "traces",
)


def add(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="ratios against transformers.generate, from interleaved runs")
    bench.set_defaults(command=_bench)
    add_models(bench)
    bench.add_argument("--runs", type=positive, help="interleaved runs of each side (default: 5; with --suite 1)")
    bench.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help=DEFAULT)
    bench.add_argument("--only", nargs="+", metavar="PART", help="standard ngram assistant page long start memory cpu")
    bench.add_argument("--json", type=Path, metavar="F", help="write the result to this file")
    bench.add_argument("--traces", type=Path, metavar="F", help="with --suite: write every run's trace, one a line")
    bench.add_argument("--suite", metavar="S", help="drafters over prompts instead: a preset's name or a .jsonl file")
    bench.add_argument("--drafters", nargs="+", help="with --suite: these drafters (default: all of the pair's)")
    bench.add_argument("--lookaheads", nargs="+", type=int, help="with --suite: at each of these (default: the pair's)")
    bench.add_argument("--policy", help=f"with --suite: one of {', '.join(POLICIES)} (default: the pair's)")
    bench.add_argument("--confidence-threshold", type=float, help="with --suite: for that policy (default: the pair's)")
    bench.add_argument("--nodes", type=int, help="with --suite: the most tokens of a draft tree (default: the pair's)")
    bench.add_argument(
        "--per-category", type=positive, metavar="N", help="with --suite: so many prompts of each category"
    )
    bench.add_argument("--temperature", type=float, metavar="T", help="with --suite (default: 0, which is greedy)")


def _bench(options: argparse.Namespace) -> None:
    from playground import results

    check_writable(options.json)
    if options.suite and options.only:
        raise PlaygroundError("--only chooses parts of a benchmark without --suite. Leave one of them out.")
    if not options.suite and (given := [name for name in WITH_SUITE if getattr(options, name) is not None]):
        raise PlaygroundError(f"--{given[0].replace('_', '-')} goes with --suite, which is missing.")
    result = _suite(options) if options.suite else _parts(options)
    if options.json:
        write(options.json, json.dumps(results.to_json(result), indent=1))


def _parts(options: argparse.Namespace) -> BenchResult:
    from playground.bench import parts

    return parts.run(
        chosen_pair(options),
        runs=options.runs or 5,
        max_new_tokens=options.max_new_tokens,
        only=options.only,
        dtype=options.dtype,
        device=options.device,
        say=print,
    )


def _suite(options: argparse.Namespace) -> SuiteResult:
    from playground import export
    from playground.backends.local import LocalBackend
    from playground.experiments import suite
    from playground.experiments.questions import questions
    from playground.lane import LOCAL, assisted_lane, standard_lane
    from playground.models.store import ModelStore
    from playground.views.suite import table

    check_writable(options.traces)
    pair = chosen_pair(options)
    lanes = [
        assisted_lane(pair, drafter, lookahead, options.policy, options.confidence_threshold, options.nodes)
        for drafter in options.drafters or pair.drafters
        for lookahead in options.lookaheads or [pair.lookahead]
    ]
    settings = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature or 0.0}
    backends = {LOCAL: LocalBackend(ModelStore(), pair, options.dtype, options.device)}
    result = suite.run(
        standard_lane(pair),
        lanes,
        questions(options.suite, options.per_category, settings),
        backends,
        runs=options.runs or 1,
        stop=threading.Event(),
        emit=_say,
    )
    if options.traces:
        write(options.traces, "\n".join(json.dumps(export.trace_to_json(trace)) for trace in result.traces))
    print(table(result))
    return result


def _say(event: Event) -> None:
    if isinstance(event, PromptDone):
        speedups = ", ".join(f"{lane} {speedup:.2f}×" for lane, speedup in event.speedups.items())
        print(f"{event.number}/{event.total} {event.category}: {speedups}")
