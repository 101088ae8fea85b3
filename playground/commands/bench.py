"""`bench`: speed against transformers.generate()."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair, positive, write


def add(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure speed against transformers.generate()",
        description="Measures speed against transformers.generate() in interleaved runs.",
    )
    bench.set_defaults(command=_bench)
    bench.add_argument("--runs", type=positive, default=5, metavar="N", help="runs of each side (default: 5)")
    add_settings(bench, "max_new_tokens")
    bench.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="some of: standard ngram assistant page long start memory cpu launches",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    add_models(bench)


def _bench(options: argparse.Namespace) -> None:
    from playground import results
    from playground.bench import parts

    check_writable(options.json)
    result = parts.run(
        chosen_pair(options),
        runs=options.runs,
        max_new_tokens=options.max_new_tokens,
        only=options.only,
        dtype=options.dtype,
        device=options.device,
        say=print,
    )
    if options.json:
        write(options.json, json.dumps(results.to_json(result), indent=1))
