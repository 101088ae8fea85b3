"""`bench`: speed against transformers.generate(), and drafters over a suite of prompts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from playground.commands.arguments import (
    PRESETS_OWN,
    add_models,
    add_settings,
    check_writable,
    chosen_pair,
    positive,
    write,
)
from playground.errors import PlaygroundError
from playground.experiments.events import Event, PromptDone
from playground.format import ratio

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
    bench = commands.add_parser(
        "bench",
        help="measure speed against transformers.generate(), or drafters over a suite of prompts",
        description="Measures speed against transformers.generate() in interleaved runs; with --suite, compares "
        "drafters over many prompts instead.",
    )
    bench.set_defaults(command=_bench)
    bench.add_argument("--runs", type=positive, metavar="N", help="runs of each side (default: 5; with --suite 1)")
    add_settings(bench, "max_new_tokens")
    bench.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="some of: standard ngram assistant page long start memory cpu launches",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    add_models(bench)
    suite = bench.add_argument_group("suite")
    suite.add_argument("--suite", metavar="SUITE", help="a preset's name, or a .jsonl file of prompts")
    suite.add_argument("--drafters", nargs="+", metavar="NAME", help="drafters to compare (default: all of the pair's)")
    suite.add_argument("--lookaheads", nargs="+", type=int, metavar="N", help=f"each of these (default: {PRESETS_OWN})")
    add_settings(suite, "policy", "confidence_threshold", "nodes", default=PRESETS_OWN)
    suite.add_argument("--per-category", type=positive, metavar="N", help="prompts of each category (default: all)")
    add_settings(suite, "temperature", default="0")
    suite.add_argument("--traces", type=Path, metavar="FILE", help="write the trace of every run, one per line")


def _bench(options: argparse.Namespace) -> None:
    from playground import results

    check_writable(options.json)
    if options.suite and options.only:
        raise PlaygroundError("--only and --suite exclude each other. Leave one of them out.")
    if not options.suite and (given := [name for name in WITH_SUITE if getattr(options, name) is not None]):
        raise PlaygroundError(f"--{given[0].replace('_', '-')} is for --suite only. Add --suite, or leave it out.")
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
    from playground.experiments.watch import Watch
    from playground.lane import LOCAL, assisted_lane, standard_lane
    from playground.models.store import ModelStore
    from playground.views import report

    check_writable(options.traces)
    pair = chosen_pair(options)
    drafting = {name: getattr(options, name) for name in ("policy", "confidence_threshold", "nodes")}
    lanes = [
        assisted_lane(pair, drafter, lookahead, **drafting)
        for drafter in options.drafters or pair.drafters
        for lookahead in options.lookaheads or [pair.lookahead]
    ]
    settings = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature or 0.0}
    backends = {LOCAL: LocalBackend(ModelStore(), pair, options.dtype, options.device)}
    result = suite.run(
        standard_lane(pair),
        lanes,
        questions(options.suite, options.per_category, settings, turns=1),
        backends,
        Watch(_say),
        runs=options.runs or 1,
    )
    assert result, "nobody stops it"
    if options.traces:
        write(options.traces, "\n".join(json.dumps(export.trace_to_json(trace)) for trace in result.traces))
    print(report.text(report.of(result)))
    return result


def _say(event: Event) -> None:
    if isinstance(event, PromptDone) and event.result.failure:
        print(f"{event.number}/{event.total} {event.category}: {event.result.failure.reason}")
    elif isinstance(event, PromptDone):
        speedups = ", ".join(f"{lane} {ratio(speedup)}" for lane, speedup in event.speedups.items())
        print(f"{event.number}/{event.total} {event.category}: {speedups}")
