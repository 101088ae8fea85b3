"""`python -m benchmarks`: what the project measures about itself. The product imports none of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cpu, doctor, engines, parts, races, turns
from benchmarks.gpu import command as gpu
from playground.commands import run_command
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair, positive, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a benchmark; see `playground.commands.run_command`."""
    run_command(parser().parse_args(arguments))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="benchmark")
    _add_speed(commands)
    cpu.add(commands)
    engines.add(commands)
    turns.add(commands)
    races.add(commands)
    doctor.add(commands)
    gpu.add(commands)
    return parser


def _add_speed(commands: argparse._SubParsersAction) -> None:
    speed = commands.add_parser(
        "speed",
        help="speed against transformers.generate(), and what the page costs",
        description="Measures ratios of interleaved runs with their spread. A part that fails is reported, and the "
        "others run.",
    )
    speed.set_defaults(command=_speed)
    speed.add_argument("--runs", type=positive, default=5, metavar="N", help="runs of each side (default: 5)")
    add_settings(speed, "max_new_tokens")
    speed.add_argument("--only", nargs="+", metavar="PART", help=f"some of: {' '.join(parts.PARTS)}")
    speed.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE after each part")
    add_models(speed)


def _speed(options: argparse.Namespace) -> None:
    check_writable(options.json)

    def keep(result: parts.BenchResult) -> None:
        if options.json:
            write(options.json, json.dumps(result.to_json(), indent=1))

    failed = parts.run(
        chosen_pair(options),
        runs=options.runs,
        max_new_tokens=options.max_new_tokens,
        only=options.only,
        dtype=options.dtype,
        device=options.device,
        say=print,
        keep=keep,
    )
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
