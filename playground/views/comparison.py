"""A comparison as sentences and tables."""

from __future__ import annotations

from playground import metrics
from playground.format import UNKNOWN, ratio
from playground.trace import Comparison, Environment, Trace
from playground.views import charts, drafters, facts, report
from playground.views.report import Report
from playground.views.table import Table


@report.of.register
def _(result: Comparison) -> Report:
    best = drafters.of(result)[0].lane
    where = dict.fromkeys(_where(trace.environment) for trace in result.lanes)
    several = len({trace.lane.backend for trace in result.lanes}) > 1
    return Report(
        facts.title(result, best),
        "; ".join(where if several else [*where][-1:]),
        findings(result),
        [charts.race(result), charts.acceptance(result.beside(best).others[0])],
        [*filter(None, [figures(result), drafters.table(result), facts.memory(result)])],
    )


def figures(comparison: Comparison) -> Table:
    """A column for each lane."""
    lanes = comparison.lanes
    shown = [_figures(trace) for trace in lanes]
    rows = [(label, *(column.get(label, UNKNOWN) for column in shown)) for label in max(shown, key=len)]
    rows.append((f"Speed-up over {comparison.baseline}", *(_speedup(comparison, trace) for trace in lanes)))
    return Table("Figures", ("", *(trace.lane.name for trace in lanes)), tuple(rows), numbers=len(lanes))


def findings(comparison: Comparison) -> list[str]:
    """Each lane beside the baseline, then why to doubt the figures, and what limits them."""
    lanes, others = comparison.lanes, comparison.others
    said = [
        *(_beside(comparison, other) for other in others),
        *map(facts.shortage, others),
        facts.caveat(*lanes),
        *(note for trace in lanes for note in trace.environment.notes),
    ]
    return [*filter(None, said)]


def doubts(comparison: Comparison, other: Trace) -> list[str]:
    """Why not to believe a lane's speed-up."""
    return facts.doubts(comparison.standard, other, metrics.repeated(comparison, other))


def _beside(comparison: Comparison, other: Trace) -> str:
    repeats = metrics.repeated(comparison, other)
    speedup = ratio(metrics.headline(comparison, other))
    speedup += f" (median; {facts.spread(repeats)})" if repeats else ""
    said = facts.sameness(comparison.standard, other), facts.passes(comparison.standard, other)
    return " ".join((f"{other.lane.name}: {speedup}.", *said))


def _figures(trace: Trace) -> dict[str, str]:
    drafting = trace.lane.drafter != "none"
    return {figure.label: figure.shown for figure in facts.figures(metrics.measure(trace), drafting=drafting)}


def _speedup(comparison: Comparison, trace: Trace) -> str:
    if trace is comparison.standard:
        return "1×"
    doubtful = "≈ " if doubts(comparison, trace) else ""
    return doubtful + facts.speedup(comparison.beside(trace.lane.name))


def _where(environment: Environment) -> str:
    return f"{facts.environment_line(environment)}, {'; '.join(environment.weights)}"
