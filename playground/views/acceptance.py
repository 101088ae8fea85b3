"""Speed-up over acceptance as sentences, a table and a curve. All points but the measured one are synthetic."""

from __future__ import annotations

import itertools

import numpy as np
import plotly.graph_objects as go

from playground.format import UNKNOWN, number, percent, ratio
from playground.results import AcceptanceResult, Summary
from playground.views import charts, charts_suite, compared, report, suite, table
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table

COLORS = {"synthetic": charts.STANDARD, "measured": charts.ASSISTED}


@report.of.register
def _(result: AcceptanceResult) -> Report:
    return Report(
        f"Speed-up over acceptance: {suite.title(result.suite)}",
        suite.setting(result.suite),
        findings(result),
        [curve(result)],
        [by_rate(result)],
        [suite.by_category(result.suite), suite.by_prompt(result.suite)],
    )


compared.comparable.register(AcceptanceResult, lambda result: result.suite)
table.lines.register(AcceptanceResult, lambda result: suite.lines(result.suite))


def by_rate(result: AcceptanceResult) -> Table:
    """Return a table of the measured lane, then of a row for each rate."""
    rows = [("measured", "", *_cells(result.measured))]
    rows += [("synthetic", f"{rate:g}", *_cells(summary)) for rate, summary in result.curve]
    columns = ("verdicts", "rate", "mean accepted length", "accepted", "speed-up, pooled", "tokens/s", "identical")
    return Table("Speed-up over acceptance", columns, tuple(rows), numbers=6)


def _cells(summary: Summary | None) -> tuple[str, ...]:
    if summary is None:
        return (UNKNOWN,) * 5
    return (
        number(summary.mean_accepted_length),
        percent(summary.acceptance_rate),
        ratio(summary.overall, summary.interval),
        number(summary.tokens_per_s, 1),
        f"{summary.identical} of {summary.prompts}",
    )


def findings(result: AcceptanceResult) -> list[str]:
    """Return sentences on the measured point, the best speed-up on this machine, the break-even, and what is
    synthetic."""
    found, points = result.measured, sorted(_points(result))
    said = []
    if found and found.mean_accepted_length and points:
        said.append(
            f"Measured: {ratio(found.overall, found.interval)} at {found.mean_accepted_length:.2f} tokens a pass. The "
            f"curve has {_at(points, found.mean_accepted_length):.2f}× there."
        )
    if points:
        length, most = points[-1]
        said.append(
            f"The most accepted here, {length:.2f} tokens a pass, gives {most:.2f}×: more takes a cheaper draft."
        )
        said.append(_break_even(points))
    said.append("All but the measured lane is synthetic: verdicts were drawn, and the text is standard decoding's.")
    return [*said, *left_out(result.suite.failures)]


def _points(result: AcceptanceResult) -> list[tuple[float, float]]:
    """Return tokens a pass and speed-up of each rate."""
    summaries = [summary for _, summary in result.curve if summary]
    return [(it.mean_accepted_length, it.overall) for it in summaries if it.mean_accepted_length]


def _at(points: list[tuple[float, float]], length: float) -> float:
    """Interpolate the curve between its points."""
    lengths, speedups = np.array(points).T
    return float(np.interp(length, lengths, speedups))


def _break_even(points: list[tuple[float, float]]) -> str:
    if points[0][1] >= 1:
        return "Drafting costs nothing that was seen: the curve is above 1 from its first point on."
    crossing = next(((a, b) for a, b in itertools.pairwise(points) if a[1] < 1 <= b[1]), None)
    if crossing is None:
        return "Drafting does not pay here at any rate: the curve stays below 1."
    (x, low), (to, high) = crossing
    return f"Drafting begins to pay at {x + (to - x) * (1 - low) / (high - low):.2f} tokens a pass."


def curve(result: AcceptanceResult) -> go.Figure:
    """Draw speed-up over tokens a pass, with the measured lane as a star."""
    figure = charts.blank("Speed-up over acceptance", "with 95 % intervals", "mean accepted length", "speed-up")
    points = sorted(
        ((summary, rate) for rate, summary in result.curve if summary), key=lambda it: it[0].mean_accepted_length or 0
    )
    if not points:
        return charts.empty(figure, "No prompt was run.")
    lanes = [("synthetic", [summary for summary, _ in points], [f"rate {rate:g}" for _, rate in points], "circle")]
    if result.measured:
        lanes.append(("measured", [result.measured], ["measured"], "star"))
    for name, summaries, texts, symbol in lanes:
        figure.add_scatter(
            x=[it.mean_accepted_length for it in summaries],
            y=[it.overall for it in summaries],
            error_y=charts_suite.error_bars(summaries),
            text=texts,
            name=name,
            mode="lines+markers" if name == "synthetic" else "markers",
            line={"color": COLORS[name], "width": 2},
            marker={"symbol": symbol, "size": 14 if symbol == "star" else 7},
            hovertemplate="%{y:.2f}× at %{x:.2f} tokens a pass<extra>%{text}</extra>",
        )
    charts.add_unity(figure)
    every = [it for _, summaries, *_ in lanes for it in summaries]
    axis = charts.ratio_axis([it.overall for it in every], [it.interval for it in every])
    ends = [(name, it[-1].overall, COLORS[name]) for name, it, *_ in lanes]
    charts.label_lines(figure, ends, axis)
    sentences = [
        f"{text}: {it.overall:.2f} at {it.mean_accepted_length:.2f} tokens a pass."
        for _, summaries, texts, _ in lanes
        for it, text in zip(summaries, texts, strict=True)
    ]
    figure.update_layout(meta=" ".join(["Speed-up over acceptance.", *sentences]))
    return figure.update_yaxes(title_text="speed-up, log scale", **axis)
