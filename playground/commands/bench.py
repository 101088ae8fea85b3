"""What the playground measures of itself, and of drafters over many prompts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from playground.commands.arguments import DEFAULT, add_models, check_writable, chosen_pair, positive, write
from playground.drafting_methods import POLICIES
from playground.errors import PlaygroundError

WITH_SUITE = ("drafters", "lookaheads", "policy", "confidence_threshold", "nodes", "per_category", "temperature")


def add(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="ratios against transformers.generate, from interleaved runs")
    bench.set_defaults(command=_bench)
    add_models(bench)
    bench.add_argument("--runs", type=positive, help="interleaved runs of each side (default: 5; with --suite 1)")
    bench.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help=DEFAULT)
    bench.add_argument("--only", nargs="+", metavar="PART", help="standard ngram assistant page long start memory")
    bench.add_argument("--json", type=Path, metavar="F", help="write the result to this file")
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
    from playground.experiments import bench

    check_writable(options.json)
    if options.suite:
        if options.only:
            raise PlaygroundError("--only chooses parts of a benchmark without --suite. Leave one of them out.")
        result = _bench_suite(options)
        if options.json:
            write(options.json, json.dumps(result))
        return
    if given := [name for name in WITH_SUITE if getattr(options, name) is not None]:
        raise PlaygroundError(f"--{given[0].replace('_', '-')} goes with --suite, which is not there.")
    result = bench.run(
        chosen_pair(options),
        runs=options.runs or 5,
        max_new_tokens=options.max_new_tokens,
        only=options.only,
        dtype=options.dtype,
        device=options.device,
        say=print,
    )
    if options.json:
        write(options.json, json.dumps(result, indent=1))


def _bench_suite(options: argparse.Namespace) -> dict:
    from playground.experiments import suite
    from playground.lane import assisted_lane
    from playground.views import report

    pair = chosen_pair(options)
    lanes = [
        assisted_lane(pair, drafter, lookahead, options.policy, options.confidence_threshold, options.nodes)
        for drafter in options.drafters or pair.drafters
        for lookahead in options.lookaheads or [pair.lookahead]
    ]
    sampling = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature or 0.0}
    asked = suite.questions(options.suite, options.per_category, sampling)
    result = suite.run(pair, lanes, asked, options.runs or 1, dtype=options.dtype, device=options.device, say=print)
    print(report.suite_table(result))
    return result
