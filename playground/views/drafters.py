"""The table of drafters: every lane of a comparison against the baseline, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass

from playground import metrics
from playground.format import UNKNOWN, count, megabytes, number
from playground.metrics import Measured
from playground.trace import Comparison
from playground.views import engines, facts, headline
from playground.views.table import Table

HEAD = ("Drafter", "Speed-up", "Tokens per check", "Acceptance", "Cost of a check", "Runs in", "Memory", "Output")
CAPTION = "Every drafter on this prompt, compared with standard decoding."
LOST = "slower than standard decoding"


@dataclass(frozen=True)
class Row:
    """One drafter, its figures as shown.

    `lane`: its name. `runs_in`: the engines that can draft this way. `note`: a remark on its figures, or "".
    `best`: it is clearly the fastest, and faster than the baseline. `bar`: the speed-up and the ends of its interval,
    to draw; None without a speed-up. `outcome`: see `Measured.outcome`.
    """

    lane: str
    speedup: str
    tokens_per_pass: str
    acceptance: str
    cost: str
    runs_in: str
    memory: str
    output: str
    note: str
    best: bool
    bar: tuple[float, float, float] | None
    outcome: str | None


def of(comparison: Comparison) -> list[Row]:
    """Return the rows sorted by speed-up; lanes that have none come last, in the order in which they ran."""
    best = metrics.leader(comparison)
    return [_row(found, best=found.ours.lane.name == best) for found in metrics.ranked(comparison)]


def table(comparison: Comparison) -> Table:
    """Return the rows as a table."""
    shown = []
    for row in of(comparison):
        name = f"{row.lane}{' (best here)' if row.best else ''}{f' ({row.note})' if row.note else ''}"
        figures = (row.speedup, row.tokens_per_pass, row.acceptance, row.cost, row.runs_in, row.memory, row.output)
        shown.append((name, *figures))
    said = f"{verdict(comparison)} {caption(comparison)}".strip()
    return Table(said, HEAD, tuple(shown), numbers=len(HEAD) - 1)


def verdict(comparison: Comparison) -> str:
    """Say which drafter is the fastest, as far as it is clear; "" where only one ran."""
    found, best = metrics.ranked(comparison), metrics.leader(comparison)
    named = [f"{it.ours.lane.name}, {headline.speedup(it)}" for it in found if it.speedup]
    if len(named) < 2:
        return ""
    if best:
        return f"Best here: {named[0]}."
    if found[0].outcome != "faster":
        return f"No drafter clearly beat standard decoding here. The fastest was {named[0]}."
    return f"No clear winner: {named[0]} and {named[1]} are too close to tell apart."


def caption(comparison: Comparison) -> str:
    """Say what the rows are, and how sure they are."""
    if len(comparison.others) < 2:
        return CAPTION
    if all(trace.schedule == "by turns" for trace in comparison.lanes):
        return f"{CAPTION} All decoded by turns."
    noise = metrics.noise(comparison)
    return CAPTION if noise is None else f"{CAPTION} Two runs of one lane differed by up to {noise - 1:.0%}."


def _row(measured: Measured, *, best: bool) -> Row:
    other, equation, speedup = measured.ours, measured.equation, measured.speedup
    return Row(
        lane=other.lane.name,
        speedup=headline.speedup(measured),
        tokens_per_pass=number(equation.tokens_per_pass if equation else None),
        acceptance=facts.acceptance(metrics.measure(other)).rate,
        cost=number(equation.cost if equation else None),
        runs_in=engines.runs_in(other.lane),
        memory=megabytes(other.memory.total if other.memory else None),
        output=_output(measured),
        note=_note(measured),
        best=best,
        bar=(speedup, *(measured.interval or (speedup, speedup))) if speedup else None,
        outcome=measured.outcome,
    )


def _output(found: Measured) -> str:
    """Say whether the lane wrote what the baseline wrote."""
    baseline, trace, difference = found.base, found.ours, found.difference
    if difference is None:
        return "identical"
    n = min(len(baseline.tokens), len(trace.tokens))
    if "stopped" in (baseline.finish, trace.finish) and difference.index == n:
        return "identical so far" if n else UNKNOWN
    return f"differs from token {difference.index + 1}"


def _note(found: Measured) -> str:
    trace = found.ours
    if trace.finish == "stopped":
        return "stopped" if trace.rounds else "not run: stopped before"
    if found.outcome == "slower":
        return LOST
    return count(found.runs, "run") if found.interval else ""
