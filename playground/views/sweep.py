"""A sweep's result as sentences, tables and charts."""

from __future__ import annotations

from math import isclose, log

from playground.format import UNKNOWN, number, percent, ratio
from playground.lane import AXES
from playground.metrics import PositionAcceptance
from playground.results import STANDARD, Point, SweepResult
from playground.theory.lookahead import ENOUGH, TOLERANCE
from playground.views import charts_suite, compared, ranking, report, suite
from playground.views import table as spreadsheet
from playground.views.ranking import FEW
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table

NO_PREDICTION = (
    f"No predicted curve: it needs the rounds of chains, not trees, and at least {ENOUGH} that drafted at the largest "
    "lookahead."
)
FALLS = (
    "Acceptance falls as more is drafted, whatever that does to the speed: it cannot rank draft lengths. Choose by the "
    "speed-up."
)


@report.of.register
def _(result: SweepResult) -> Report:
    tables = [by_value(result), by_category(result), by_position(result)]
    axis = AXES[result.axis]
    return Report(
        f"{axis[0].upper()}{axis[1:]} of {suite.title(result.suite)}",
        suite.setting(result.suite, result.axis),
        findings(result),
        [charts_suite.sweep(result), charts_suite.by_category(result)],
        [table for table in tables if len(table.columns) > 1],
        [suite.by_prompt(result.suite)],
        ranking.deploy(result.suite),
    )


compared.comparable.register(SweepResult, lambda result: result.suite)
spreadsheet.lines.register(SweepResult, lambda result: suite.lines(result.suite))


def by_value(result: SweepResult) -> Table:
    """Return a row for each value, over all prompts."""
    predicted = any(point.predicted for point in result.points)
    columns = (AXES[result.axis], "verdict", "speed-up, pooled", *["predicted"] * predicted, "runs in", "macro")
    columns += ("tokens/s", "mean accepted length", "accepted", "identical")
    engine = ranking.runs_in(result.suite.lanes)
    verdicts = ranking.verdicts(result.suite)
    rows = tuple(
        _row(it, verdicts.get(it.lane, ""), engine.get(it.lane, UNKNOWN), predicted=predicted) for it in result.points
    )
    return Table("By value", columns, rows, numbers=len(columns) - 2)


def by_position(result: SweepResult) -> Table:
    """Return conditional acceptance by position in the draft: among the drafts whose earlier positions were all
    accepted."""
    depth = max((p.position for point in result.points if point.overall for p in point.overall.positions), default=0)
    rows = []
    for point in result.points:
        at = {p.position: p for p in point.overall.positions} if point.overall else {}
        rows.append((f"{point.value:g}", *(_share(at[i]) if i in at else "" for i in range(1, depth + 1))))
    columns = (AXES[result.axis], *map(str, range(1, depth + 1)))
    return Table("Acceptance by position in the draft, if reached", columns, tuple(rows), numbers=depth)


def _share(found: PositionAcceptance) -> str:
    """Show counts instead of a percentage below ENOUGH drafts."""
    if found.reached < ENOUGH:
        return f"{found.accepted} of {found.reached}" if found.reached else ""
    return percent(found.accepted / found.reached)


def by_category(result: SweepResult) -> Table:
    """Return the pooled speed-up of each value on each category."""
    categories = list(dict.fromkeys(summary.category for point in result.points for summary in point.summaries))
    rows = []
    for point in result.points:
        speeds = {summary.category: ratio(summary.overall, summary.interval) for summary in point.summaries}
        rows.append((f"{point.value:g}", *(speeds.get(category, UNKNOWN) for category in categories)))
    return Table("Speed-up by category", (AXES[result.axis], *categories), tuple(rows), numbers=len(categories))


def findings(result: SweepResult) -> list[str]:
    """Name the best value and what ties with it, what failed, and what acceptance cannot say."""
    sentences = [verdict(result)] if any(point.best for point in result.points) else []
    sentences.extend(_against_prediction(result))
    if result.axis in ("lookahead", "nodes"):
        sentences.append(FALLS)
    return [*sentences, *left_out(result.suite.failures)]


def verdict(result: SweepResult) -> str:
    """Say which value to use, as far as it is clear, for a sweep whose values are chosen for speed."""
    axis, ties = AXES[result.axis], [point for point in result.points if point.ties and point.lane != STANDARD]
    best = next(point for point in result.points if point.best)
    found = {it.lane: it for it in ranking.ranking(result.suite)}
    if best.lane == STANDARD or best.lane not in found:
        return f"No {axis} was faster than standard decoding."
    gain = ratio(found[best.lane].speedup, found[best.lane].interval)
    if not found[best.lane].interval:
        return f"The fastest {axis} was {best.value:g}, {gain}: {FEW}."
    if not any(found[point.lane].gains for point in ties):
        return f"No {axis} clearly beat standard decoding (the fastest: {best.value:g}, {gain})."
    if len(ties) == 1:
        return f"Best {axis}: {best.value:g}, {gain}."
    others = ", ".join(f"{point.value:g}" for point in ties if point is not best)
    return f"No clear winner: {axis} {best.value:g} gave {gain}; {others} cannot be told from it."


def _against_prediction(result: SweepResult) -> list[str]:
    """Say whether the measurement agrees with the formulas and, where it does not, why."""
    points = [point for point in result.points if point.predicted and point.overall and point.value]
    if not points:
        return [NO_PREDICTION] if result.axis == "lookahead" else []
    deepest = max(point.value for point in points)
    how = f"Predicted from the drafts at lookahead {deepest:g} and the cost of passes"
    misses = [_miss(point) for point in points]
    if not any(misses):
        return [f"{how}: within a tenth of what was measured at every lookahead."]
    return [f"{how}: within a tenth of what was measured, except at {'; at '.join(filter(None, misses))}."]


def _miss(point: Point) -> str:
    """Return a prediction that is more than a tenth off, with the part of it that is off; "" if it is not."""
    predicted, found = point.predicted, point.overall
    assert predicted and found and found.mean_accepted_length
    off = predicted.speedup / found.overall
    if isclose(off, 1, rel_tol=TOLERANCE):
        return ""
    tokens = predicted.tokens_per_pass / found.mean_accepted_length
    text = f"{point.value:g}, {predicted.speedup:.2f} predicted and {found.overall:.2f} measured"
    if found.interval and found.interval[0] <= predicted.speedup <= found.interval[1]:
        return f"{text}, within the noise"
    if abs(log(tokens)) >= abs(log(off / tokens)):
        here, there = predicted.tokens_per_pass, found.mean_accepted_length
        return f"{text}: {here:.2f} tokens a pass predicted, {there:.2f} measured"
    return f"{text}: a round cost {off / tokens:.2f} times what was predicted"


def _row(point: Point, verdict: str, engine: str, *, predicted: bool) -> tuple[str, ...]:
    summary = point.overall
    speedup = [number(point.predicted.speedup if point.predicted else None)] * predicted
    if summary is None:
        return (f"{point.value:g}", "", UNKNOWN, *speedup, engine, *[UNKNOWN] * 5)
    return (
        f"{point.value:g}",
        verdict,
        ratio(summary.overall, summary.interval),
        *speedup,
        engine,
        number(summary.macro),
        number(summary.tokens_per_s, 1),
        number(summary.mean_accepted_length),
        percent(summary.acceptance_rate),
        f"{summary.identical} of {summary.prompts}",
    )
