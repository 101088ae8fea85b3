"""A comparison as text for a terminal."""

from __future__ import annotations

from playground import metrics
from playground.trace import Comparison, Environment, Trace
from playground.views import report


def text(comparison: Comparison) -> str:
    """A short table, then a line for each lane beside the baseline."""
    columns = [metrics.measure(lane) for lane in comparison.lanes]
    names = [lane.lane.name for lane in comparison.lanes]
    rows = [[figure.label, figure.unit] for figure in report.figures(columns[-1], drafting=True)]
    rows[-1][1] = ""
    for lane, m in zip(comparison.lanes, columns, strict=True):
        drafting = lane.lane.drafter != "none"
        values = [figure.value for figure in report.figures(m, drafting=drafting)]
        for row, value in zip(rows, values + [""] * (len(rows) - len(values)), strict=True):
            row.append(value)
    widths = [max(len(row[i]) for row in [["", "", *names], *rows]) for i in range(len(names) + 2)]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in [["", "", *names], *rows]]
    where = dict.fromkeys(_where(trace.environment) for trace in comparison.lanes)
    return "\n".join(
        [
            *lines,
            "",
            *(_against(comparison, other) for other in comparison.others),
            *filter(None, [*map(report.shortage, comparison.others), report.caveat(*comparison.lanes)]),
            *_memory_line(comparison),
            *(where if len({trace.lane.backend for trace in comparison.lanes}) > 1 else [*where][-1:]),
            *(note for trace in comparison.lanes for note in trace.environment.notes),
        ]
    )


def _against(comparison: Comparison, other: Trace) -> str:
    repeats = metrics.repeated(comparison, other)
    ratio = report.ratio(metrics.compare(comparison.standard, other).speedup)
    speedup = f"{report.ratio(repeats.median)} (median; {report.spread(repeats)})" if repeats else ratio
    facts = report.sameness(comparison.standard, other), report.passes(comparison.standard, other)
    return " ".join((f"{other.lane.name}: {speedup}.", *facts))


def _memory_line(comparison: Comparison) -> list[str]:
    """What the lanes hold in memory, on one line."""
    rows = report.memory_rows(comparison)
    if not rows:
        return []
    names, *_, total = rows
    return ["Memory: " + ", ".join(f"{size} {name}" for name, size in zip(names[1:], total[1:], strict=True))]


def _cells(row: list[str], widths: list[int]) -> list[str]:
    label, unit, *values = row
    right = [f"{value:>{width}}" for value, width in zip(values, widths[2:], strict=True)]
    return [f"{label:<{widths[0]}}", *right, f"{unit:<{widths[1]}}"]


def _where(environment: Environment) -> str:
    return f"{report.environment_line(environment)}, {'; '.join(environment.weights)}"
