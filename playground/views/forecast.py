"""A forecast for hardware that was not measured, as tables and sentences. What is assumed stands beside what is
measured, and the error of the same formulas on the machine of the run beside both."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from playground import metrics
from playground.drafting_methods import METHODS
from playground.errors import check
from playground.format import UNKNOWN, ratio
from playground.lane import LOCAL, Lane, label, names
from playground.metrics import PositionAcceptance
from playground.results import Recommendation, Result, SuiteResult, SweepResult, TrafficResult
from playground.theory import forecast
from playground.theory.forecast import BATCHES, Drafts, Hardware, Setting
from playground.trace import Comparison, Environment, Shape
from playground.views.report import Report
from playground.views.table import Table

NATIVE = ("mtp", "eagle3")  # drafted by the CPU engine
OFF = "off on the run's machine"
MEASURED, ASSUMED = "measured, 95 %", "assumed"


def of(
    result: Result | Comparison, devices: Sequence[Hardware], form: str, batches: Sequence[int], contexts: Sequence[int]
) -> Report:
    """Return the forecast of a result's chains and lookups.

    Raises:
        PlaygroundError: nothing in the result can be forecast.
    """
    environment, found = drafts_of(result)
    tables, findings = list[Table](), list[str]()
    for device in devices:
        at = Setting(device, form, batches[0], contexts[0])
        tables += [_by_lookahead(found, at, environment), *(_by_load(it, at, batches, contexts) for it in found)]
        findings += [_sentence(it, at, environment) for it in found]
    tables.append(_basis(found, devices, environment))
    return Report(
        f"Forecast for {', '.join(it.title for it in devices)}",
        _setting(environment, form),
        [*findings, *checks(found, environment)],
        [],
        tables,
    )


def drafts_of(result: Result | Comparison) -> tuple[Environment, list[Drafts]]:
    """Return the machine of a result, and what it says of each chain and lookup.

    Raises:
        PlaygroundError: it says too little.
    """
    if isinstance(result, Comparison):
        environment, found = result.standard.environment, _of_traces(result)
    else:
        suite = _suite(result)
        environment, found = suite.environment, _of_suite(suite)
    check(
        "target" in environment.shapes,
        "This result has no shapes of its models: an earlier release measured it, a server did, or the target is a "
        "mixture of experts. Run it again here.",
    )
    check(bool(found), "No lane of this result drafted chains or lookups often enough to forecast them.")
    return environment, found


def table(result: SuiteResult) -> Table | None:
    """Return the best lookahead of each lane on each device in a table, after what the same formulas say of this
    machine; None where nothing can be forecast."""
    found = _of_suite(result)
    if not found:
        return None
    rows = []
    for it in found:
        for lookahead, expected, measured in _here(it, result.environment):
            here = f"{it.name}, this machine: measured {ratio(measured)}"
            rows.append((here, _band(expected), _error(it, result.environment), str(lookahead), UNKNOWN))
        for device in forecast.load_hardware().values():
            if device.bandwidth:
                at = Setting(device)
                lookahead, band = forecast.best(it, at)
                stops = str(forecast.stops_paying(it, at) or f"> {BATCHES[-1]}") if lookahead else UNKNOWN
                shown = _band(band) if lookahead else UNKNOWN
                name, off = f"{it.name}, {device.title}", _error(it, result.environment)
                rows.append((name, shown, off, str(lookahead), stops))
    columns = ("lane, hardware", "expected speed-up", OFF, "lookahead", "stops paying at a batch of")
    return Table("Forecast for other hardware: bfloat16, one text of 512 tokens", columns, tuple(rows), numbers=4)


def checks(found: Sequence[Drafts], environment: Environment) -> list[str]:
    """Say how far the same formulas are off on the machine of the run."""
    if forecast.hardware_of(environment) is None:
        return ["The machine of this result is in no list, or its memory was not measured: there is no check."]
    said = []
    for it in found:
        for lookahead, expected, measured in _here(it, environment):
            inside = "inside the band" if expected.low <= measured <= expected.high else "OUTSIDE the band"
            said.append(
                f"Check on {environment.device_name} ({environment.dtype}), {it.name}: forecast {_band(expected)} at "
                f"{lookahead}, measured {ratio(measured)}, off by {expected.mean / measured - 1:+.0%}, {inside}."
            )
    return said


def _here(it: Drafts, environment: Environment) -> list[tuple[int, forecast.Band, float]]:
    """Return the mean lookahead of a run, the forecast of it on its own machine, and what was measured; nothing where
    either is unknown."""
    device, dtype = forecast.hardware_of(environment), environment.dtype or "bfloat16"
    if device is None or it.measured is None:
        return []
    stored = forecast.BYTES.get(dtype.split()[0], 2.0)  # bytes of a weight
    at = Setting(device, _computes(dtype), context=128, stored=stored, measured=True)
    lookahead = max(1, round(it.used))
    return [(lookahead, forecast.speedup(it, at, lookahead), it.measured)]


def _suite(result: Result) -> SuiteResult:
    match result:
        case SuiteResult():
            return result
        case SweepResult() | TrafficResult():
            return result.suite
        case Recommendation():
            return result.confirmed
    check(False, "A forecast takes the result of a comparison, suite, sweep, recommend or traffic.")
    raise AssertionError


def _of_suite(suite: SuiteResult) -> list[Drafts]:
    shapes, named, found = suite.environment.shapes, names(suite.lanes), []
    for lane in suite.lanes:
        rows = [row for row in suite.rows if row.lane == label(lane)]
        if not rows:
            continue
        passes, drafted = sum(row.passes or 0 for row in rows), sum(row.drafted or 0 for row in rows)
        measured, drafter = suite.of(label(lane)).overall, shapes.get(label(lane))
        at = metrics.add_positions(row.positions for row in rows)
        found += _drafts(named[label(lane)], lane, at, passes - len(rows), drafted, shapes, drafter, measured)
    return found


def _of_traces(comparison: Comparison) -> list[Drafts]:
    found = []
    for trace in comparison.others:
        at, drafted = metrics.acceptance_by_position(trace.rounds), sum(len(it.drafted) for it in trace.rounds)
        shapes = trace.environment.shapes
        how = metrics.measured(comparison, trace.lane.name).speedup
        found += _drafts(
            trace.lane.name, trace.lane, at, len(trace.rounds) - 1, drafted, shapes, shapes.get("drafter"), how
        )
    return found


def _drafts(
    name: str,
    lane: Lane,
    positions: Sequence[PositionAcceptance],
    rounds: int,
    drafted: int,
    shapes: dict[str, Shape],
    drafter: Shape | None,
    measured: float | None,
) -> list[Drafts]:
    """Return what a lane of this process says; nothing of a tree, or where it drafted too seldom."""
    if lane.backend != LOCAL or METHODS[lane.drafter].tree or lane.drafter == "adaptive" or "target" not in shapes:
        return []
    accepted = tuple((it.reached, it.accepted) for it in positions)
    drafting = positions[0].drafted if positions else 0
    if not drafting or (METHODS[lane.drafter].weights and drafter is None):
        return []
    share, used = min(1.0, drafting / max(1, rounds)), drafted / drafting
    parallel, eager = METHODS[lane.drafter].parallel, lane.drafter not in NATIVE
    it = Drafts(name, accepted, share, used, shapes["target"], drafter, parallel, measured, eager)
    return [it] if it.most else []


def _error(it: Drafts, environment: Environment) -> str:
    """Return by how much the same formulas are off on the machine of the run."""
    return next((f"{expected.mean / measured - 1:+.0%}" for _, expected, measured in _here(it, environment)), UNKNOWN)


def _by_lookahead(found: Sequence[Drafts], at: Setting, environment: Environment) -> Table:
    rows = []
    for it in found:
        chosen, _ = forecast.best(it, at)
        for lookahead in range(1, it.most + 1):
            tokens = it.tokens(lookahead)
            shown = f"{tokens.mean:.2f} ({tokens.low:.2f} to {tokens.high:.2f})"
            mark = ", best" if lookahead == chosen else ""
            band = _band(forecast.speedup(it, at, lookahead))
            rows.append((it.name, f"{lookahead}{mark}", shown, band, _error(it, environment)))
    caption = f"{at.hardware.title}, {at.form}, batch {at.batch}, {at.context:,} tokens of context"
    columns = ("lane", "lookahead", "tokens per check (measured)", "expected speed-up", OFF)
    return Table(caption, columns, tuple(rows), numbers=4)


def _by_load(it: Drafts, at: Setting, batches: Sequence[int], contexts: Sequence[int]) -> Table:
    rows = []
    for batch in batches:
        settings = [replace(at, batch=batch, context=context) for context in contexts]
        best = [forecast.best(it, each) for each in settings]
        rows.append((str(batch), *(f"{k} ({_band(band)})" if k else "0" for k, band in best)))
    columns = ("batch", *(f"{context:,} tokens" for context in contexts))
    return Table(f"num_speculative_tokens on {at.hardware.title}: {it.name}", columns, tuple(rows), len(columns))


def _sentence(it: Drafts, at: Setting, environment: Environment) -> str:
    lookahead, band = forecast.best(it, at)
    where = f"{it.name} on {at.hardware.title}"
    if not lookahead:
        return f"{where}: no lookahead up to {it.most} is expected to pay."
    stops = forecast.stops_paying(it, at)
    until = f"stops paying at a batch of {stops}" if stops else f"still pays at a batch of {BATCHES[-1]}"
    deeper = f"further tokens cost more than they give, of {it.most} measured" if lookahead < it.most else (
        "the longest draft that was measured often enough, so more may give more"
    )  # fmt: skip
    plan = json.dumps(_plan(it, at))
    return (
        f"{where}: {_band(band)} expected at a lookahead of {lookahead} ({deeper}); it {until}. On the machine of the "
        f"run the same formulas are off by {_error(it, environment)}. "
        f'vLLM: "num_speculative_tokens_per_batch_size": {plan}.'
    )


def _plan(it: Drafts, at: Setting) -> list[list[int]]:
    """Return ranges of batches with their lookahead, as vLLM takes them."""
    plan: list[list[int]] = []
    for batch, after in zip(BATCHES, (*BATCHES[1:], BATCHES[-1] + 1), strict=True):
        lookahead, _ = forecast.best(it, replace(at, batch=batch))
        if plan and plan[-1][2] == lookahead:
            plan[-1][1] = after - 1
        else:
            plan.append([batch, after - 1, lookahead])
    return plan


def _setting(environment: Environment, form: str) -> str:
    target = environment.shapes["target"]
    return (
        f"Acceptance was measured on {environment.device_name} ({environment.dtype}), with a target of "
        f"{target.values / 1e6:,.0f} million multiplied values; times are computed, for weights in {form}. The last "
        "table says what is measured and what is assumed."
    )


def _basis(found: Sequence[Drafts], devices: Sequence[Hardware], environment: Environment) -> Table:
    """Return all that the forecast rests on: what was measured, and beside it what is assumed."""
    target, rows = environment.shapes["target"], list[tuple[str, str, str]]()
    for it in found:
        for position, (reached, accepted) in enumerate(it.accepted[: it.most], start=1):
            low, high = metrics.wilson(accepted, reached)
            share = f"{accepted / reached:.0%} ({low:.0%} to {high:.0%}) of {reached:,}"
            rows.append((f"{it.name}: acceptance at position {position}, if reached", share, MEASURED))
        rows.append((f"{it.name}: rounds that draft", f"{it.share:.0%}", "measured"))
    rows += [
        ("the same at any batch, context and format", "yes", ASSUMED),
        ("target: keys and values of a token", f"{target.cache:,}", "of its shape"),
        ("all texts of a batch as long", "yes", ASSUMED),
        ("time of the prefill, and attention's own arithmetic", "left out", ASSUMED),
    ]
    for device in devices:
        (least, most), (low, high), product_us, pass_us = device.ranges
        rows += [
            (f"{device.title}: memory's peak", f"{device.bandwidth / 1e12:g} TB/s", device.source),
            (f"{device.title}: of it a pass reaches", f"{least:.0%} to {most:.0%}", ASSUMED),
            (f"{device.title}: of the arithmetic's peak", f"{low:.0%} to {high:.0%}", ASSUMED),
            (f"{device.title}: beside them, for a product", "{:g} to {:g} µs".format(*product_us), ASSUMED),
            (f"{device.title}: and for a pass", "{:g} to {:g} µs".format(*pass_us), ASSUMED),
        ]
    return Table("What it rests on", ("quantity", "value", "from"), tuple(rows), numbers=0)


def _band(band: forecast.Band) -> str:
    return ratio(band.mean, (band.low, band.high))


def _computes(dtype: str) -> str:
    """Return the format in which a number format, as `Environment` names it, multiplies."""
    (*_, last) = re.findall(r"float32|bfloat16|float16|int\d+", dtype) or ["bfloat16"]
    return last
