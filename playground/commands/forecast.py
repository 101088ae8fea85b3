"""The command `forecast`: what would a drafter that was measured here gain on other hardware?"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from playground.commands.arguments import DEFAULT, positive
from playground.commands.history import named
from playground.drafting_methods import METHODS
from playground.errors import check
from playground.format import ratio
from playground.lane import LOCAL, Lane, label, names

if TYPE_CHECKING:  # scipy would slow every command down
    from playground.metrics import PositionAcceptance
    from playground.results import Result, Row, SuiteResult
    from playground.theory.forecast import Drafts, Hardware, Setting
    from playground.theory.queueing import Band
    from playground.trace import Comparison, Environment, Shape, Trace
    from playground.views.table import Table

FORMATS = ("float32", "bfloat16", "float16", "fp8", "int8", "int4")
NATIVE = ("mtp", "eagle3")  # drafted by the CPU engine


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "forecast",
        help="what would a drafter that was measured here gain on other hardware?",
        description="From the acceptance of a run with a constant lookahead and the shapes of its models: the expected "
        "speed-up on hardware that you do not own, as a band, by batch and context, and whether its low end pays. "
        "Withheld where the same formulas are wrong for the machine of the run.",
    )
    parser.set_defaults(command=_forecast)
    parser.add_argument("result", metavar="RESULT", help="an id of the history, or a file of `--json`")
    parser.add_argument(
        "--hardware", nargs="+", default=["h100"], metavar="NAME",
        help=f"of presets/hardware.yaml, or a file of that form with your own {DEFAULT}",
    )  # fmt: skip
    parser.add_argument(
        "--batch", nargs="+", type=positive, default=[1, 8, 32, 128], metavar="N", help="texts decoded together"
    )
    parser.add_argument("--context", nargs="+", type=positive, default=[512, 8192], metavar="N", help="tokens of each")
    parser.add_argument("--format", choices=FORMATS, default="bfloat16", help=f"of the weights {DEFAULT}")


def _forecast(options: argparse.Namespace) -> None:
    from playground.theory.forecast import Setting, hardware

    devices = list(itertools.chain.from_iterable(map(hardware, options.hardware)))
    environment, measured, others = drafts_of(named(options.result))
    trusted, said = checks(measured, environment, devices)
    said += [f"{name}: left out, since its lookahead was not constant." for name in others]
    print("\n".join([_basis(environment), *said]))
    for device in devices if trusted else ():
        settings = [
            Setting(device, device.format(options.format), batch, context)
            for context, batch in itertools.product(options.context, options.batch)
        ]
        shown = table(trusted, settings)
        print(f"\n{shown.caption}\n{_assumed(device)}\n{shown.text()}")


def drafts_of(result: Result | Comparison) -> tuple[Environment, list[Drafts], list[str]]:
    """Returns the machine of a result, what it says of each chain and lookup with a constant lookahead, and the names
    of those with another policy.

    Raises:
        PlaygroundError: it says too little.
    """
    from playground.trace import Comparison

    if isinstance(result, Comparison):
        environment, found = result.standard.environment, {it.lane: _of_trace(result, it) for it in result.others}
    else:
        suite = _suite(result)
        environment, found = suite.environment, {lane: _of_rows(suite, lane) for lane in suite.lanes}
    check(
        "target" in environment.shapes,
        "This result has no shapes of its models: an earlier release measured it, a server did, or the target is a "
        "mixture of experts. Run it again here.",
    )
    possible = {lane: it for lane, it in found.items() if it and it.most}
    check(bool(possible), "No lane of this result drafted chains or lookups often enough to forecast them.")
    constant = [it for lane, it in possible.items() if lane.policy == "constant"]
    check(
        bool(constant),
        "The lookahead of this result was not constant. Its drafts go on where the drafter is sure and by what this "
        "machine costs, so that their acceptance says nothing of other drafts. Run it again with --policy constant "
        "--lookahead 8.",
    )
    return environment, constant, [it.name for lane, it in possible.items() if lane.policy != "constant"]


def checks(
    measured: Sequence[Drafts], environment: Environment, devices: Sequence[Hardware]
) -> tuple[list[Drafts], list[str]]:
    """Returns the lanes whose forecast is not withheld, and what the same formulas say of the machine of the run."""
    from playground.theory import forecast

    trusted, said = [], []
    for it in measured:
        found = forecast.checked(it, environment, devices)
        if found is None:
            trusted.append(it)
            said.append(f"{it.name}: not checked, since the machine of the run is in no list or nothing was measured.")
            continue
        here = (
            f"{it.name}: for the machine of the run the same formulas say {_band(found.expected)}; measured, without "
            f"the prefill, {ratio(found.measured)}"
        )
        if found.holds:
            trusted.append(it)
        said.append(f"{here}." if found.holds else f"{here}, outside the band: its forecast is withheld.")
    return trusted, said


def table(measured: Sequence[Drafts], settings: Sequence[Setting]) -> Table:
    """Returns a row for each lane and setting of a device: the lookahead whose band has the highest low end."""
    from playground.theory import forecast
    from playground.views.table import Table

    rows = []
    for it, at in itertools.product(measured, settings):
        advice = forecast.best(it, at)
        tokens, band = it.tokens(advice.lookahead), _band(advice.band)
        answer = "pays" if advice.pays else "does not pay" if advice.never else "cannot tell"
        rows.append((it.name, f"{at.batch}", f"{at.context:,}", str(advice.lookahead), _band(tokens, ""), band, answer))
    columns = (
        "lane",
        "batch",
        "context",
        "lookahead",
        "tokens per check (measured)",
        "expected speed-up",
        "by its low end",
    )
    return Table(f"{settings[0].hardware.title}, {settings[0].form}", columns, tuple(rows), 6, ("by its low end",))


def _suite(result: Result) -> SuiteResult:
    from playground.results import Recommendation, SuiteResult, SweepResult, TrafficResult

    match result:
        case SuiteResult():
            return result
        case SweepResult() | TrafficResult():
            return result.suite
        case Recommendation():
            return result.confirmed
    check(False, "A forecast takes the result of a comparison, suite, sweep, recommend or traffic.")
    raise AssertionError


def _of_trace(comparison: Comparison, trace: Trace) -> Drafts | None:
    from playground import metrics, theory

    shapes, decoding = trace.environment.shapes, theory.decoding(comparison.standard, trace)
    at, rounds = metrics.acceptance_by_position(trace.rounds), len(trace.rounds) - 1
    return _drafts(trace.lane.name, trace.lane, at, rounds, shapes, "drafter", decoding.speedup if decoding else None)


def _of_rows(suite: SuiteResult, lane: Lane) -> Drafts | None:
    from playground import metrics
    from playground.results import STANDARD

    ours, base = ([row for row in suite.rows if row.lane == name] for name in (label(lane), STANDARD))
    rounds, theirs, plain = sum(row.passes or 0 for row in ours) - len(ours), _later_s(ours), _later_s(base)
    at, name = metrics.add_positions(row.positions for row in ours), names(suite.lanes)[label(lane)]
    measured = plain / theirs if plain and theirs else None
    return _drafts(name, lane, at, rounds, suite.environment.shapes, label(lane), measured)


def _later_s(rows: Sequence[Row]) -> float | None:
    """Returns the seconds of a token after the first, over all rows; None where one does not say when that came."""
    if any(row.ttft_s is None for row in rows):
        return None
    return sum(row.seconds - (row.ttft_s or 0.0) for row in rows) / max(1, sum(row.tokens - 1 for row in rows))


def _drafts(
    name: str,
    lane: Lane,
    positions: Sequence[PositionAcceptance],
    rounds: int,
    shapes: Mapping[str, Shape],
    drafter: str,
    measured: float | None,
) -> Drafts | None:
    """Returns what a lane of this process says; None of a tree, or where it drafted too seldom. `drafter`: the key of
    its shape."""
    from playground.theory.forecast import Drafts

    method, weights = METHODS.get(lane.drafter), shapes.get(drafter)
    if lane.backend != LOCAL or not method or method.tree or lane.drafter == "adaptive" or "target" not in shapes:
        return None
    if not positions or (method.weights and weights is None):
        return None
    accepted = tuple((it.reached, it.accepted) for it in positions)
    share, eager = min(1.0, positions[0].drafted / max(1, rounds)), lane.drafter not in NATIVE
    return Drafts(name, accepted, share, lane.lookahead, shapes["target"], weights, method.parallel, measured, eager)


def _basis(environment: Environment) -> str:
    return (
        f"Acceptance was measured on {environment.device_name} ({environment.dtype}), with a target of "
        f"{environment.shapes['target'].values / 1e6:,.0f} million multiplied values. Times are computed; prefill and "
        "attention's own arithmetic are left out. Assumed: acceptance is the same at any batch, context and format, "
        "and the texts of a batch are equally long."
    )


def _assumed(device: Hardware) -> str:
    memory, arithmetic = (f"{low:.0%} to {high:.0%}" for low, high in (device.memory, device.arithmetic))
    product_us, pass_us = (f"{low:g} to {high:g} µs" for low, high in (device.product_us, device.pass_us))
    return (
        f"Memory at {device.bandwidth:g} GB/s and peaks of {device.source}. Assumed: passes reach {memory} of the "
        f"memory's and {arithmetic} of the arithmetic's, {product_us} for each product and {pass_us} a pass."
    )


def _band(band: Band, unit: str = "×") -> str:
    return f"{band.mean:.2f}{unit} ({band.low:.2f} to {band.high:.2f})"
