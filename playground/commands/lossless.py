"""`lossless`: is the output the target's own?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from playground.commands import experiment
from playground.commands.arguments import (
    DEFAULT,
    PRESETS_OWN,
    add_models,
    add_settings,
    check_writable,
    chosen_pair,
    positive,
    positive_number,
    write,
)
from playground.lane import LOSSY_RULES
from playground.settings import PRESET

ANSWER = ("max_new_tokens", "repetition_penalty", "chat_template")
RULES = "; ".join(f"{name} {does}" for name, does in LOSSY_RULES.items())


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "lossless",
        help="test whether a drafter leaves the target's output unchanged",
        description="Compares greedy outputs with standard decoding's, with the margin at each difference, and tests "
        "sampled tokens against the target's distribution.",
        epilog="Exit code 0: all lanes passed; 1: one is not lossless; 2: it cannot be run; 130: it was stopped. "
        f"--rule adds lanes that are wrong on purpose, and which must fail: {RULES}.",
    )
    parser.set_defaults(command=_lossless)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE; - for stdout")
    add_models(parser)
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--suite", default="examples", metavar="SUITE", help=f"a suite's name, or a file {DEFAULT}")
    prompts.add_argument("--per-category", type=positive, metavar="N", help="prompts of each category (default: all)")
    tested = parser.add_argument_group("what is tested")
    tested.add_argument("--drafters", nargs="+", metavar="NAME", help="drafters to test (default: all of the pair's)")
    tested.add_argument("--rule", nargs="+", choices=LOSSY_RULES, default=[], help="test these lossy rules as well")
    tested.add_argument(
        "--draws", type=positive, default=2048, metavar="N", help=f"tokens to sample with each lane {DEFAULT}"
    )
    tested.add_argument(
        "--temperature", type=positive_number, default=1.0, metavar="X", help=f"of the sampled answers {DEFAULT}"
    )
    tested.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
    add_settings(parser.add_argument_group("drafting"), *PRESET, default=PRESETS_OWN)
    add_settings(parser.add_argument_group("answer"), *ANSWER)


def _lossless(options: argparse.Namespace) -> None:
    from playground import results
    from playground.experiments.questions import questions
    from playground.experiments.work import Lossless
    from playground.lane import assisted_lane, lossy
    from playground.views import report

    check_writable(options.json)
    pair = chosen_pair(options)
    pair = pair if options.dtype == "auto" else replace(pair, dtype=options.dtype)
    settings = {name: getattr(options, name) for name in PRESET}
    lanes = [assisted_lane(pair, name, **settings) for name in options.drafters or pair.drafters]
    lanes += [lossy(lane, rule) for lane in lanes for rule in options.rule]
    asked = questions(options.suite, options.per_category, {name: getattr(options, name) for name in ANSWER})
    work = Lossless(pair, tuple(lanes), tuple(asked), options.temperature, options.draws)
    title = f"Lossless? {options.suite} on {pair.title}"
    result: Any = experiment.run(work, title, device=options.device, again=options.again)
    document = json.dumps(results.to_json(result), indent=1)
    if options.json == Path("-"):
        print(document)
    else:
        if options.json:
            write(options.json, document)
        print(report.text(report.of(result)))
    if not result.passed:
        sys.exit(1)
