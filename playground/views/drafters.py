"""Which drafter? Every lane of a comparison beside the baseline, as rows of a table, the fastest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from playground import metrics
from playground.format import UNKNOWN, megabytes, number, percent, ratio
from playground.lane import LOCAL, Lane
from playground.metrics import Repeated
from playground.trace import Comparison, Trace
from playground.views.table import Table

HEAD = ("Drafter", "Speed-up", "Tokens per pass", "Acceptance", "Cost of a round", "Memory", "Output")
CAPTION = "Which drafter? Every lane on this prompt, beside standard decoding."
LOST = "slower than standard decoding"


@dataclass(frozen=True)
class Row:
    """One drafter, its figures as shown.

    `lane`: the name of the lane; `name`: its short form. `note`: what to say of it beside its figures, or "". `best`:
    it has the highest speed-up of all that finished, and one above 1.
    """

    lane: str
    name: str
    speedup: str
    tokens_per_pass: str
    acceptance: str
    cost: str
    memory: str
    output: str
    note: str
    best: bool


def of(comparison: Comparison) -> list[Row]:
    """The rows of a finished comparison; its repeats count."""
    others = comparison.others
    return rows(comparison.standard, others, {trace.lane.name: metrics.repeated(comparison, trace) for trace in others})


def rows(baseline: Trace, others: Sequence[Trace], repeats: Mapping[str, Repeated | None] | None = None) -> list[Row]:
    """Sorted by speed-up, the median of its repeats; lanes that have none come last, in the order in which they ran."""
    medians = repeats or {}
    speedups = {}
    for trace in others:
        again = medians.get(trace.lane.name)
        speedups[trace.lane.name] = (again.median if again else metrics.compare(baseline, trace).speedup) or 0.0
    ranked = sorted(others, key=lambda trace: -speedups[trace.lane.name])
    best = next((trace for trace in ranked if trace.finish != "stopped"), None)
    return [
        _row(baseline, trace, speedups[trace.lane.name], medians.get(trace.lane.name), best=trace is best)
        for trace in ranked
    ]


def table(comparison: Comparison) -> Table:
    """The same as a table."""
    shown = []
    for row in of(comparison):
        name = f"{row.name}{' (best here)' if row.best else ''}{f' ({row.note})' if row.note else ''}"
        shown.append((name, row.speedup, row.tokens_per_pass, row.acceptance, row.cost, row.memory, row.output))
    return Table(CAPTION, HEAD, tuple(shown), numbers=len(HEAD) - 1)


def _row(baseline: Trace, trace: Trace, speedup: float, repeats: Repeated | None, *, best: bool) -> Row:
    equation = metrics.equation(*metrics.compared_rounds(baseline, trace))
    rate = metrics.measure(trace).acceptance_rate
    spread = (repeats.low, repeats.high) if repeats else None
    return Row(
        lane=trace.lane.name,
        name=_short(trace.lane),
        speedup=ratio(speedup, spread),
        tokens_per_pass=number(equation.tokens_per_pass if equation else None),
        acceptance=percent(rate),
        cost=number(equation.cost if equation else None),
        memory=megabytes(trace.memory.total if trace.memory else None),
        output=_output(baseline, trace),
        note=_note(trace, speedup),
        best=best and speedup > 1,
    )


def _short(lane: Lane) -> str:
    short = lane.name.removeprefix("Assisted: ")
    return short[:1].upper() + short[1:] if lane.backend == LOCAL else short


def _output(baseline: Trace, trace: Trace) -> str:
    """Whether the lane wrote what the baseline wrote."""
    difference = metrics.first_difference(baseline, trace)
    if difference is None:
        return "identical"
    n = min(len(baseline.tokens), len(trace.tokens))
    if "stopped" in (baseline.finish, trace.finish) and difference.index == n:
        return "identical so far" if n else UNKNOWN
    return f"differs from token {difference.index + 1}"


def _note(trace: Trace, speedup: float) -> str:
    if trace.finish == "stopped":
        return "stopped" if trace.rounds else "not run: stopped before"
    return LOST if 0 < speedup < 1 else ""
