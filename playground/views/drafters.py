"""The table of drafters: every lane of a comparison against the baseline, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass

from playground import metrics
from playground.format import UNKNOWN, count, megabytes, number, percent
from playground.metrics import Measured
from playground.trace import Comparison
from playground.views import engines, headline
from playground.views.table import Table

HEAD = ("Drafter", "Speed-up", "Tokens per pass", "Acceptance", "Cost of a round", "Runs in", "Memory", "Output")
CAPTION = "Every lane on this prompt, compared with standard decoding."
LOST = "slower than standard decoding"


@dataclass(frozen=True)
class Row:
    """One drafter, its figures as shown.

    `lane`: its name. `runs_in`: the engines that can draft this way. `note`: a remark on its figures, or "".
    `best`: it is clearly the fastest, and faster than the baseline.
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
    return Table(caption(comparison), HEAD, tuple(shown), numbers=len(HEAD) - 1)


def caption(comparison: Comparison) -> str:
    """Return the caption, which says whether there is a clear winner and, where there is none, why."""
    noise, best = metrics.noise(comparison), metrics.leader(comparison)
    if len(comparison.others) < 2:
        return CAPTION
    if all(trace.schedule == "by turns" for trace in comparison.lanes):
        said = (
            f"{best} is clearly the fastest here"
            if best
            else "No clear winner: the first ones are as close as the noise"
        )
        return f"{said}. {CAPTION} All lanes decoded by turns."
    if noise is None:
        return CAPTION
    spread = f"two runs of one lane differed by up to {noise - 1:.0%}"
    if best:
        return f"{best} is clearly the fastest here: {spread}. {CAPTION}"
    return f"No clear winner: the first ones are closer than the noise ({spread}). {CAPTION}"


def _row(measured: Measured, *, best: bool) -> Row:
    other = measured.ours
    equation = measured.equation
    return Row(
        lane=other.lane.name,
        speedup=headline.speedup(measured),
        tokens_per_pass=number(equation.tokens_per_pass if equation else None),
        acceptance=percent(metrics.measure(other).acceptance_rate),
        cost=number(equation.cost if equation else None),
        runs_in=engines.runs_in(other.lane),
        memory=megabytes(other.memory.total if other.memory else None),
        output=_output(measured),
        note=_note(measured),
        best=best,
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
