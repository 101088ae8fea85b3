"""Figures by depth of the context as sentences, a table and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from playground import metrics
from playground.format import count, milliseconds, number, percent, ratio
from playground.metrics import AtDepth, DepthFigures
from playground.results import STANDARD, DepthResult, LaneDepths, names_of
from playground.views import charts, compared, report, suite, table
from playground.views.charts import ASSISTED
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table


@report.of.register
def _(result: DepthResult) -> Report:
    return Report(
        f"Depth of {suite.title(result.suite)}",
        suite.setting(result.suite),
        findings(result),
        [speedup(result), tokens_per_pass(result)],
        [by_depth(result.depths, names_of(result.suite.lanes))],
        [suite.by_prompt(result.suite)],
    )


compared.comparable.register(DepthResult, lambda result: result.suite)


@table.lines.register
def _(result: DepthResult) -> list[dict[str, Any]]:
    names = names_of(result.suite.lanes)
    return [
        {"lane": names[it.lane], "low": at.low, "high": at.high, "rounds": at.rounds, "tokens": at.tokens,
         "acceptance_rate": at.acceptance_rate, "tokens_per_pass": at.mean_accepted_length, "pass_s": at.pass_s,
         "tokens_per_s": at.tokens_per_s, "speedup": each.speedup, "low_speedup": ends[0], "high_speedup": ends[1],
         "answers": at.answers}
        for it in result.depths
        for each in metrics.speedups(result.depths[0].figures, it.figures)
        for at, ends in [(each.figures, each.interval or (None, None))]
    ]  # fmt: skip


def findings(result: DepthResult) -> list[str]:
    """Return the depth at which speculation stops paying, then how the first and the last span differ."""
    base, ours = (it.figures for it in result.depths)
    name = _name(result)
    if result.stops is None:
        said = [f"{name} still paid at the end, at {result.until:,} tokens of context."]
    elif result.stops == ours[0].low:
        said = [f"{name} was nowhere faster than standard decoding."]
    else:
        said = [f"{name} stops paying at a context of about {result.stops:,} tokens."]
    spans = [it for it in metrics.speedups(base, ours) if it.speedup]
    if len(spans) > 1:
        first, last = spans[0].figures, spans[-1].figures
        said.append(
            f"From {_span(first)} to {_span(last)} tokens: {_speedup(spans[0])} to {_speedup(spans[-1])}; "
            f"{number(first.mean_accepted_length)} to {number(last.mean_accepted_length)} tokens per pass, "
            f"a pass {milliseconds(first.pass_s)} to {milliseconds(last.pass_s)}."
        )
    rows = [row for row in result.suite.rows if row.lane == STANDARD]
    reused = sum(row.reused or 0 for row in rows)
    said.append(
        f"{count(len(rows), 'turn')} of one conversation, in which {reused:,} tokens came from the cache of the turns "
        "before; each span has the rounds of a few answers."
    )
    return [*said, *left_out(result.suite.failures)]


def by_depth(lanes: Sequence[LaneDepths], names: Mapping[str, str]) -> Table:
    """Return a row for each lane and span of depth. Speeds leave the prefill out. `names`: the lanes' names by their
    labels."""
    base = next(it.figures for it in lanes if it.lane == STANDARD)
    rows = [
        (names[it.lane], _span(at), f"{at.rounds:,}", percent(at.acceptance_rate), number(at.mean_accepted_length),
         milliseconds(at.pass_s), number(at.tokens_per_s, 1), "" if it.lane == STANDARD else _speedup(each))
        for it in lanes
        for each in metrics.speedups(base, it.figures)
        for at in [each.figures]
    ]  # fmt: skip
    columns = ("lane", "context tokens", "passes", "accepted", "tokens per pass", "pass", "tokens/s", "speed-up")
    return Table("By depth", columns, tuple(rows), numbers=6)


def speedup(result: DepthResult) -> go.Figure:
    """Draw the speed-up over the depth; 1 is no drafter."""
    base, ours = (it.figures for it in result.depths)
    known = [(it.figures, it.speedup, it.interval) for it in metrics.speedups(base, ours) if it.speedup]
    values, intervals = [over for _, over, _ in known], [interval for _, _, interval in known]
    figure = _line(
        "Speed-up by depth", f"{_name(result)}, prefills left out",
        "speed-up, log scale", [(_middle(at), over) for at, over, _ in known], _name(result),
    )  # fmt: skip
    figure.update_traces(error_y=charts.error_bars(values, intervals))
    charts.add_unity(figure)
    return figure.update_yaxes(**charts.ratio_axis(values, intervals))


def tokens_per_pass(result: DepthResult) -> go.Figure:
    """Draw the mean accepted length over the depth."""
    found = [(_middle(at), at.mean_accepted_length or 0.0) for at in result.depths[1].figures]
    return _line(
        "Tokens per pass by depth", f"{_name(result)}, with the target's own", "tokens per pass", found,
        _name(result),
    )  # fmt: skip


def _name(result: DepthResult) -> str:
    """Return the name of the drafting lane."""
    return names_of(result.suite.lanes)[result.depths[1].lane]


def _line(title: str, subtitle: str, unit: str, points: Sequence[tuple[float, float]], name: str) -> go.Figure:
    figure = charts.blank(title, subtitle, "tokens of context", unit)
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        name=escape(name),
        mode="lines+markers",
        line={"color": ASSISTED, "width": 2},
        hovertemplate="%{y:.2f} at %{x:,.0f} tokens<extra></extra>",
    )
    said = [f"{x:,.0f} tokens: {y:.2f}." for x, y in points]
    figure.update_layout(meta=" ".join([f"{title}.", *said]))
    return figure.update_yaxes(rangemode="tozero").update_xaxes(rangemode="tozero")


def _speedup(at: AtDepth) -> str:
    """Return the speed-up with its interval, or with the number of answers where these are too few for an interval."""
    few = f", n = {at.figures.answers}" if at.speedup and not at.interval and at.figures.answers else ""
    return ratio(at.speedup, at.interval) + few


def _span(at: DepthFigures) -> str:
    return f"{at.low:,} to {at.high - 1:,}"


def _middle(at: DepthFigures) -> float:
    return (at.low + at.high) / 2
