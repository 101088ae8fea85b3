"""A sweep's result as sentences and tables."""

from __future__ import annotations

from playground import metrics
from playground.results import Point, SweepResult
from playground.views.suite import NO_DIFFERENCE, UNKNOWN, Table, ratio, setting

NAMES = {
    "lookahead": "lookahead",
    "nodes": "tree size",
    "confidence_threshold": "confidence threshold",
    "temperature": "temperature",
    "prompt_tokens": "prompt tokens",
}
FALLS = (
    "Acceptance falls as more is drafted, whatever that does to the speed: it cannot rank draft lengths. Choose by the "
    "speed-up."
)


def table(result: SweepResult) -> str:
    """How it was run, and a line for each value, as Markdown."""
    return f"{setting(result.suite, result.axis)}\n\n{by_value(result).markdown()}"


def by_value(result: SweepResult) -> Table:
    """A row for each value, over all prompts."""
    return Table(
        "By value",
        (NAMES[result.axis], "speed-up, pooled", "", "macro", "tokens/s", "mean accepted length", "accepted",
         "identical"),
        tuple(map(_row, result.points)),
        numbers=5,
    )  # fmt: skip


def by_position(result: SweepResult) -> Table:
    """Acceptance by position in the draft, conditional: of those that accepted all positions before."""
    depth = max((p.position for point in result.points if point.overall for p in point.overall.positions), default=0)
    rows = []
    for point in result.points:
        at = {p.position: p for p in point.overall.positions} if point.overall else {}
        cells = [
            f"{at[i].accepted / at[i].reached:.0%}" if i in at and at[i].reached else "" for i in range(1, depth + 1)
        ]
        rows.append((f"{point.value:g}", *cells))
    columns = (NAMES[result.axis], *map(str, range(1, depth + 1)))
    return Table("Acceptance by position in the draft, if reached", columns, tuple(rows), numbers=depth)


def by_category(result: SweepResult) -> Table:
    """The pooled speed-up of each value on each category."""
    categories = list(dict.fromkeys(summary.category for point in result.points for summary in point.summaries))
    rows = []
    for point in result.points:
        speeds = {summary.category: f"{summary.overall:.2f}×" for summary in point.summaries}
        rows.append((f"{point.value:g}", *(speeds.get(category, UNKNOWN) for category in categories)))
    return Table(
        "Speed-up by category", (NAMES[result.axis], *categories), tuple(rows), numbers=len(categories)
    )  # fmt: skip


def findings(result: SweepResult) -> list[str]:
    """The best value and what ties with it, what failed, and what acceptance cannot say."""
    sentences = []
    best = next((point for point in result.points if point.best), None)
    if best and best.overall:
        ties = [f"{point.value:g}" for point in result.points if point.ties and point is not best]
        also = f" {', '.join(ties)} cannot be told from it." if ties else ""
        gain = ratio(best.overall.overall, best.overall.interval)
        none = ", no drafter" if best.lane == "standard" else f", {gain}"
        if best.overall.interval and not metrics.differs(best.overall.interval):
            none += f": {NO_DIFFERENCE} from no drafter"
        sentences.append(f"Best {NAMES[result.axis]}: {best.value:g}{none}.{also}")
        if not any(point.overall and point.overall.interval for point in result.points):
            sentences.append("Too few prompts and runs for intervals: another run may have another best.")
    if result.axis in ("lookahead", "nodes"):
        sentences.append(FALLS)
    if failed := len(result.suite.failures):
        sentences.append(f"{failed} {'prompt' if failed == 1 else 'prompts'} could not be run.")
    return sentences


def _row(point: Point) -> tuple[str, ...]:
    summary = point.overall
    if summary is None:
        return (f"{point.value:g}", UNKNOWN, "", *[UNKNOWN] * 5)
    mark = "best" if point.best else "ties" if point.ties else ""
    rate = summary.acceptance_rate
    return (
        f"{point.value:g}",
        ratio(summary.overall, summary.interval),
        mark,
        UNKNOWN if summary.macro is None else f"{summary.macro:.2f}",
        UNKNOWN if summary.tokens_per_s is None else f"{summary.tokens_per_s:.1f}",
        f"{summary.mean_accepted_length:.2f}",
        UNKNOWN if rate is None else f"{rate:.0%}",
        f"{summary.identical} of {summary.prompts}",
    )
