"""`why`: explains the speed-up of a saved comparison."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from playground.commands.arguments import positive_number, read, write
from playground.errors import PlaygroundError, check

if TYPE_CHECKING:  # numpy and plotly would slow every command down
    from playground.trace import Comparison


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "why",
        help="explain a measured speed-up",
        description="Explains the speed-up of a saved comparison: what tokens per pass would allow, what drafting, "
        "wider verify passes and the rest cost, and what another lookahead would have given.",
    )
    parser.set_defaults(command=_why)
    parser.add_argument("trace", type=Path, metavar="FILE", help="a trace, as `compare --json` or the page writes it")
    parser.add_argument("--published", type=positive_number, metavar="X", help="a published speed-up to compare with")
    parser.add_argument(
        "--published-length",
        type=positive_number,
        metavar="TOKENS",
        help="its tokens per pass (mean accepted length), where it is published",
    )
    parser.add_argument(
        "--hourly-rate", type=positive_number, metavar="PRICE", help="what the machine costs an hour: price per million"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE; - for stdout")


def _why(options: argparse.Namespace) -> None:
    from playground import export

    check(options.published or not options.published_length, "--published-length goes with --published.")
    comparison = export.load(read(options.trace))
    results = [_lane(comparison, options, i) for i in range(len(comparison.others))]
    if options.json:
        write(options.json, json.dumps(results, indent=1))
    if options.json != Path("-"):
        print("\n\n".join(result["text"] for result in results))


def _lane(comparison: Comparison, options: argparse.Namespace, i: int) -> dict:
    from playground import metrics, theory
    from playground.views import cost, why

    name = comparison.others[i].lane.name
    pair, measured = metrics.beside(comparison, name), metrics.measured(comparison, name)
    other = measured.ours
    found = theory.attribute(pair.standard, other)
    if found is None:
        raise PlaygroundError(f"{other.lane.name} has too few rounds with a draft to explain.")
    lines = [other.lane.name, why.paragraph(measured)]
    result: dict = {"lane": other.lane.name, "attribution": asdict(found)}
    if options.published and (decoding := theory.decoding(pair.standard, other)):
        beside = theory.published(decoding, options.published, options.published_length)
        result["published"] = asdict(beside)
        lines.append(why.against(decoding, beside))
    if whatif := theory.what_if(pair.standard, other):
        result["lookahead"] = asdict(whatif)
        lines += [why.lookahead(whatif, other), why.table(whatif).text()]
    if points := theory.batches_of(pair.standard, other):
        result["by_batch"] = [asdict(point) for point in points]
        lines.append(why.batches(points))
    if loads := theory.loads_of(pair.standard, other):
        result["under_load"] = [asdict(point) for point in loads]
        lines.append(why.load(loads))
    lines += filter(None, map(why.limit, (pair.standard, other)))
    if options.hourly_rate:
        prices = {lane.lane.name: theory.price_of(lane, options.hourly_rate) for lane in pair.lanes}
        result["price_per_million"] = prices
    if options.hourly_rate or cost.measured(pair):
        lines.append(cost.table(pair, options.hourly_rate).text())
    return {**result, "text": "\n".join(lines)}
