"""A log's result as sentences and tables: does speculation pay on this traffic?"""

from __future__ import annotations

from typing import Any

from playground import metrics
from playground.format import NO_DIFFERENCE, count, number, percent, ratio
from playground.results import STANDARD, TrafficResult, names_of
from playground.views import charts_suite, compared, ranking, report, run_details, suite, sweep, table
from playground.views.report import Report
from playground.views.table import Table

SKIPPED = 5  # the most sentences on entries that were left out; the file has all


@report.of.register
def _(result: TrafficResult) -> Report:
    return Report(
        f"Traffic: {suite.title(result.suite)}",
        suite.setting(result.suite),
        findings(result),
        [charts_suite.speedups(result.suite)],
        [
            ranking.table(result.suite),
            sweep.by_depth(result.depths, _names(result)),
            *([estimates(result)] if result.estimates else []),
        ],
        [
            suite.by_category(result.suite),
            *filter(None, [run_details.of_suite(result.suite)]),
            suite.by_prompt(result.suite),
        ],
        ranking.deploy(result.suite),
    )


compared.comparable.register(TrafficResult, lambda result: result.suite)


@table.lines.register
def _(result: TrafficResult) -> list[dict[str, Any]]:
    return suite.lines(result.suite)


def findings(result: TrafficResult) -> list[str]:
    """Return the recommendation, then what it is based on."""
    decoded = len({row.question for row in result.suite.rows})
    said = [
        headline(result),
        f"{count(decoded, 'assistant turn')} of {result.turns:,}, in {count(result.conversations, 'conversation')}, "
        "generated again under the logged history.",
        *_ends(result),
        *(_estimate(result)),
        *suite.outputs(result.suite),
    ]
    if result.skipped:
        said += [f"{count(len(result.skipped), 'entry', 'entries')} left out.", *result.skipped[:SKIPPED]]
    return said


def headline(result: TrafficResult) -> str:
    """Say whether to speculate, and with which lane."""
    found, best = ratio(result.speedup, result.interval), _names(result)[result.best]
    if result.pays:
        return f"Speculation pays on this traffic: {best}, {found}."
    if result.interval is None:
        return f"Too few turns to say whether speculation pays: the fastest, {best}, gave {found}."
    seen = "" if metrics.differs(result.interval) else f": {NO_DIFFERENCE}"
    return f"Speculation does not pay on this traffic: the fastest, {best}, gave {found}{seen}."


def _ends(result: TrafficResult) -> list[str]:
    """Return the depth at which each lane stops paying, for those that do."""
    base = next(it.figures for it in result.depths if it.lane == STANDARD)
    found = [(it.lane, metrics.stops_paying(base, it.figures)) for it in result.depths if it.lane != STANDARD]
    names = _names(result)
    return [f"{names[lane]} is not faster from a context of {at:,} tokens on." for lane, at in found if at]


def _estimate(result: TrafficResult) -> list[str]:
    """Say how far the estimates were off; a single lane's with its figures."""
    off = {it: it.tokens_per_pass / it.decoded - 1 for it in result.estimates if it.decoded}
    if len(off) > 1:
        low, high = (f"{pick(off.values()):+.0%}" for pick in (min, max))
        return [f"The estimates from the logged answers were off by {low} to {high}; their table has each drafter's."]
    return [
        f"Estimated from the logged answers, at a constant lookahead: {it.tokens_per_pass:.2f} tokens per check with "
        f"{_names(result)[it.lane]}; decoding gave {it.decoded:.2f} ({error:+.0%})."
        for it, error in off.items()
    ]


def _names(result: TrafficResult) -> dict[str, str]:
    return names_of(result.suite.lanes)


def estimates(result: TrafficResult) -> Table:
    """Return a row for each lane whose acceptance was estimated without decoding."""
    names = _names(result)
    rows = [
        (names.get(it.lane, it.lane), f"{it.counts.rounds_reached[0]:,}", percent(it.counts.agreement),
         number(it.tokens_per_pass), number(it.decoded),
         f"{it.tokens_per_pass / it.decoded - 1:+.0%}" if it.decoded else "")
        for it in result.estimates
    ]  # fmt: skip
    columns = ("lane", "rounds", "the target's own words", "tokens per check", "decoded", "difference")
    return Table("Estimated from the logged answers, at a constant lookahead", columns, tuple(rows), numbers=5)
