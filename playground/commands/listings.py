"""`pairs` and `drafters`: what there is to choose from."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from playground.drafting_methods import METHODS, TARGETS, help_for


def add(commands: argparse._SubParsersAction) -> None:
    pairs = commands.add_parser("pairs", help="list the presets and which of them this machine can run now")
    pairs.set_defaults(command=_pairs)

    drafters = commands.add_parser("drafters", help="list the drafting methods and the presets that have them")
    drafters.set_defaults(command=_drafters)
    pages = [*METHODS, TARGETS]
    drafters.add_argument(
        "name", nargs="?", choices=pages, metavar="NAME", help=f"print the help page of this drafter, or of {TARGETS}"
    )
    drafters.add_argument("--json", action="store_true", help="print the list as JSON")


def _pairs(options: argparse.Namespace) -> None:
    from playground.models.device import resolve_device
    from playground.models.fit import fits
    from playground.presets import load_pairs

    pairs, problems = load_pairs()
    device = resolve_device("auto")
    width = max(map(len, pairs), default=0)
    for pair in pairs.values():
        fit = fits(pair, device)
        print(f"{pair.name:<{width}}  {fit.label}")
        print(f"{'':<{width}}  {pair.title}; drafters: {', '.join(pair.drafters)}")
        if not fit.runs:
            print(f"{'':<{width}}  {fit.sentence}")
        if pair.note:
            print(f"{'':<{width}}  {pair.note}")
    for problem in problems:
        print(f"playground: {problem}", file=sys.stderr)


def _drafters(options: argparse.Namespace) -> None:
    from playground.presets import load_pairs

    if options.name:
        print(help_for(options.name))
        return
    pairs, _ = load_pairs()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "label": way.label,
            "needs": way.needs,
            "exact": True,
            "paper": way.paper,
            "presets": [pair.name for pair in pairs.values() if name == "none" or name in pair.drafters],
        }
        for name, way in METHODS.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    width = max(map(len, METHODS))
    for row in rows:
        print(f"{row['name']:<{width}}  {row['label']}; exact; needs {row['needs']}")
        print(f"{'':<{width}}  {row['paper']}; in {', '.join(row['presets']) or 'no preset'}")
