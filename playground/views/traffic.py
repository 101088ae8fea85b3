"""A log's result as sentences and tables: does speculation pay on this traffic?"""

from __future__ import annotations

from typing import Any

from playground import metrics
from playground.format import NO_DIFFERENCE, count, number, percent, ratio
from playground.lane import LOCAL, label
from playground.results import STANDARD, TrafficResult
from playground.views import charts_suite, compared, depth, engines, report, spreadsheet, suite
from playground.views.report import Report
from playground.views.table import Table


@report.of.register
def _(result: TrafficResult) -> Report:
    lane = next(it for it in result.suite.lanes if label(it) == result.best)
    method = lane.drafter if lane.assistant else None
    return Report(
        f"Traffic: {suite.title(result.suite)}",
        suite.setting(result.suite),
        findings(result),
        [charts_suite.speedups(result.suite)],
        [
            suite.by_category(result.suite),
            depth.by_depth(result.depths),
            *([estimates(result)] if result.estimates else []),
        ],
        [*filter(None, [suite.by_segment(result.suite)]), suite.by_prompt(result.suite)],
        engines.settings(lane, method) if result.pays and lane.backend == LOCAL else (),
    )


compared.comparable.register(TrafficResult, lambda result: result.suite)


@spreadsheet.lines.register
def _(result: TrafficResult) -> list[dict[str, Any]]:
    return suite.lines(result.suite)


def findings(result: TrafficResult) -> list[str]:
    """The recommendation, then what it rests on."""
    decoded = len({row.question for row in result.suite.rows})
    said = [
        headline(result),
        f"{count(decoded, 'assistant turn')} of {result.turns:,}, in {count(result.conversations, 'conversation')}, "
        "generated again under the logged history.",
        *_ends(result),
        *(_estimate(result)),
        *suite.findings(result.suite),
    ]
    if result.skipped:
        said.append(f"{count(len(result.skipped), 'entry', 'entries')} left out. {result.skipped[0]}")
    return said


def headline(result: TrafficResult) -> str:
    """Whether to speculate, and with what."""
    found = ratio(result.speedup, result.interval)
    if result.pays:
        return f"Speculation pays on this traffic: {result.best}, {found}."
    if result.interval is None:
        return f"Too few turns to say whether speculation pays: the fastest, {result.best}, gave {found}."
    seen = "" if metrics.differs(result.interval) else f": {NO_DIFFERENCE}"
    return f"Speculation does not pay on this traffic: the fastest, {result.best}, gave {found}{seen}."


def _ends(result: TrafficResult) -> list[str]:
    """The depth at which each lane stops paying, of those that do."""
    base = next(it.figures for it in result.depths if it.lane == STANDARD)
    found = [(it.lane, metrics.stops_paying(base, it.figures)) for it in result.depths if it.lane != STANDARD]
    return [f"{lane} is not faster from a context of {at:,} tokens on." for lane, at in found if at]


def _estimate(result: TrafficResult) -> list[str]:
    shown = [it for it in result.estimates if it.decoded]
    return [
        f"Estimated from the logged answers: {it.tokens_per_pass:.2f} tokens per pass with {it.lane}; decoding gave "
        f"{it.decoded:.2f} ({it.tokens_per_pass / it.decoded - 1:+.0%})."
        for it in shown
        if it.decoded
    ]


def estimates(result: TrafficResult) -> Table:
    """A row for each lane whose acceptance was estimated without decoding."""
    rows = [
        (it.lane, f"{it.counts.reached[0]:,}", percent(it.counts.agreement), number(it.tokens_per_pass),
         number(it.decoded), f"{it.tokens_per_pass / it.decoded - 1:+.0%}" if it.decoded else "")
        for it in result.estimates
    ]  # fmt: skip
    columns = ("lane", "drafts", "the target's own words", "tokens per pass", "decoded", "difference")
    return Table("Estimated from the logged answers", columns, tuple(rows), numbers=5)
