"""Plotly figures of a comparison, and of what its run predicts for a batch and under load.

Figures have dark text on white, so that a saved image can be read anywhere; on the page the style sheet gives them the
theme's colours. Each describes itself in words in its `meta`, for screen readers. The baseline lane is grey everywhere.
Plotly reads tags in any text, and a trace may come from anywhere, so all names are escaped.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from playground import metrics, theory
from playground.theory import BatchPoint, LoadPoint
from playground.trace import Comparison, Trace

STANDARD = "#808080"
ASSISTED = "#0072B2"  # this and the next: from Okabe and Ito's set
# Colours of the other lanes, in turn, as in the timeline, whose style sheet has their shades for the dark theme.
OTHERS = (ASSISTED, "#00795A", "#A8507F", "#8A6100")
INK = "#1f2328"
UNITY = {"color": INK, "width": 1, "dash": "dot"}  # the line at a ratio of 1
RATIOS = {  # tick values of an axis of ratios, by the largest number of decades that they are for
    0.2: tuple(i / 10 for i in range(5, 21)),
    0.6: (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4),
    math.inf: (0.1, 0.25, 0.5, 1, 2, 4, 8, 16),
}
LABEL, LINE, HEIGHT = 17, 14, 204  # characters in a line of a label; pixels of that line, and of the plot
GRID = "#d0d7de"


def config(name: str) -> dict[str, Any]:
    """Return Plotly's settings for a figure: one button, which saves `name`.png."""
    return {
        "displaylogo": False,
        "displayModeBar": True,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": {"filename": name, "format": "png", "scale": 2, "width": 900, "height": 480},
    }


def race(comparison: Comparison) -> go.Figure:
    """Draw tokens over time, one step line a lane: flat during a pass, then up by the tokens it gave."""
    subtitle = "prefill included; dotted: what memory allows"
    figure = blank("The race", subtitle, "seconds", "tokens")
    colored = [(comparison.standard, STANDARD), *zip(comparison.others, itertools.cycle(OTHERS), strict=False)]
    drawn = [(trace, color) for trace, color in colored if not trace.totals]
    for trace, color in drawn:
        times = [0.0] + [round_.end_s for round_ in trace.rounds]
        counts = [0]
        for round_ in trace.rounds:
            counts.append(counts[-1] + len(round_.tokens))
        add_line(
            figure, trace.lane.name, color, x=times, y=counts, mode="lines", line={"width": 2.5, "shape": "hv"},
            hovertemplate="%{y} tokens after %{x:.2f} s",
        )  # fmt: skip
        if (most := theory.limit_of(trace)) and trace.rounds:
            first, last = trace.rounds[0].end_s, trace.rounds[-1].end_s
            end = min(last, first + len(trace.tokens) / most.tokens_per_s)
            experts = f", reading {most.experts:.0f} experts a layer" if most.experts else ""
            add_line(
                figure, f"memory limit, {most.tokens_per_s:.0f} tok/s{experts}", color, x=[first, end],
                y=[1, 1 + (end - first) * most.tokens_per_s], mode="lines", line={"width": 1, "dash": "dot"},
                hoverinfo="name",
            )  # fmt: skip
    finished = [(trace, color) for trace, color in drawn if trace.rounds]
    axis = count_axis([len(trace.tokens) for trace, _ in finished])
    last_first = sorted(finished, key=lambda it: -it[0].rounds[-1].end_s)
    label_lines(figure, [(it.lane.name, len(it.tokens), color) for it, color in last_first], axis)
    lines = [f"{it.lane.name}: {len(it.tokens)} tokens in {it.rounds[-1].end_s:.2f} s." for it, _ in finished]
    figure.update_layout(hovermode="x", meta=" ".join(["Tokens over time.", *lines]))
    return figure.update_xaxes(rangemode="tozero").update_yaxes(**axis)


def acceptance(trace: Trace) -> go.Figure:
    """Draw acceptance by position in the draft, conditional and unconditional."""
    subtitle = "dark: where it got there; light: of all; 95 % intervals"
    figure = blank("Acceptance by position", subtitle, "position in the draft", "% accepted")
    positions = metrics.acceptance_by_position(trace.rounds)
    if not positions:
        return empty(figure, "Nothing was drafted.")
    for name, totals, opacity, meaning in (
        ("if reached", [p.reached for p in positions], 1.0, "rounds that accepted every position before it"),
        ("of all drafts", [p.drafted for p in positions], 0.45, "rounds that drafted this position"),
    ):
        figure.add_bar(
            x=[p.position for p in positions],
            y=[100 * p.accepted / total if total else None for p, total in zip(positions, totals, strict=True)],
            error_y={**_wilson([p.accepted for p in positions], totals), "thickness": 1, "width": 2},
            name=name,
            marker={"color": ASSISTED, "opacity": opacity},
            customdata=[[p.accepted, total] for p, total in zip(positions, totals, strict=True)],
            hovertemplate="%{y:.0f} %: accepted in %{customdata[0]} of %{customdata[1]} "
            + meaning
            + "<extra>position %{x}</extra>",
        )
    lines = [
        f"Position {p.position}: {p.accepted} of {p.reached} if reached, of {p.drafted} drafted." for p in positions
    ]
    figure.update_layout(barmode="group", bargap=0.25, bargroupgap=0.06)
    figure.update_layout(meta=" ".join(["Draft tokens accepted by position in the draft.", *lines]))
    return figure.update_yaxes(range=[0, 100]).update_xaxes(dtick=1 if len(positions) <= 16 else None)


def _wilson(accepted: Sequence[int], totals: Sequence[int]) -> dict[str, Any]:
    """Return Wilson's 95 % intervals as error bars, in percent: long where few drafts were as long."""
    counts = list(zip(accepted, totals, strict=True))
    found = [metrics.wilson(k, n) if n else None for k, n in counts]
    shares = [100 * k / n if n else 0.0 for k, n in counts]
    return error_bars(shares, [(100 * it[0], 100 * it[1]) if it else None for it in found])


def error_bars(values: Sequence[float], intervals: Sequence[tuple[float, float] | None]) -> dict[str, Any]:
    """Return intervals around values as Plotly's error bars. An interval that is None is not drawn."""
    # NaN draws nothing, but only in numpy arrays; Plotly takes None for an interval without width.
    ends = np.array([it or (np.nan, np.nan) for it in intervals]).reshape(-1, 2)
    array, minus = ends[:, 1] - values, np.array(values) - ends[:, 0]
    return {"array": array, "arrayminus": minus, "color": INK, "thickness": 1.2, "width": 3}


def add_line(figure: go.Figure, name: str, color: str, **more: Any) -> None:
    """Add a line, with markers unless `mode` says otherwise. `more`: further arguments of `add_scatter`."""
    line = {"color": color, "width": 2, **more.pop("line", {})}
    figure.add_scatter(**{"name": escape(name), "mode": "lines+markers", "line": line, **more})


def add_unity(figure: go.Figure, name: str = "no drafter", *, log: bool = True, **where: Any) -> None:
    """Add the line of standard decoding at a speed-up of 1. `name`: its label, "" for none. `log`: whether the axis is
    logarithmic, on which annotations have logarithms. `where`: row and column of the subplot."""
    figure.add_hline(y=1, line=UNITY, **where)
    at = {"x": 1, "xref": "x domain", "xanchor": "right", "y": 0 if log else 1, "yanchor": "top"}
    if name:
        figure.add_annotation(text=name, showarrow=False, font={"size": 11}, **at, **where)


def ratio_axis(values: Iterable[float], intervals: Iterable[tuple[float, float] | None] = ()) -> dict[str, Any]:
    """Return an axis for ratios that holds 1, these values and their intervals. It is logarithmic, so that twice and
    half are equally far from 1."""
    ends = [1.0, *values, *(end for interval in intervals if interval for end in interval)]
    low, high = math.log10(min(ends)), math.log10(max(ends))
    margin = 0.08 * (high - low) + 0.02
    marked = next(values for most, values in RATIOS.items() if high - low < most)
    bounds = (low - margin, high + margin)
    words = [f"{value:g}×" for value in marked]
    return {"type": "log", "range": bounds, "tickvals": marked, "ticktext": words, "tickangle": 0}


def count_axis(values: Iterable[float]) -> dict[str, Any]:
    """Return an axis from zero that holds these values."""
    return {"type": "linear", "range": (0.0, 1.08 * max(values, default=0.0) or 1.0)}


def label_lines(
    figure: go.Figure,
    ends: Sequence[tuple[str, float, str]],
    axis: Mapping[str, Any],
    height: float = HEIGHT,
    **where: Any,
) -> None:
    """Label lines at the right edge, in place of a legend, and move labels that would touch.

    Args:
        ends: of each line its name, the value at which it ends, and its colour. Where lines end at the same value, the
            later name is the higher.
        axis: the y axis, with its type and range.
        height: pixels of the plot.
        where: row and column of the subplot.
    """
    low, high = axis["range"]
    scale = math.log10 if axis["type"] == "log" else float
    ends = sorted(ends, key=lambda end: end[1])
    names = ["<br>".join(map(escape, textwrap.wrap(name, LABEL))) for name, _, _ in ends]
    at = [height * (scale(value) - low) / (high - low) for _, value, _ in ends]
    places = _apart(at, [LINE * (1 + name.count("<br>")) + 4 for name in names], height)
    for name, (_, value, color), y, place in zip(names, ends, at, places, strict=True):
        figure.add_annotation(
            x=1, xref="x domain", y=scale(value), xshift=4, yshift=place - y, text=name,
            showarrow=False, xanchor="left", align="left",
            font={"size": 12, "color": INK if color == STANDARD else color}, **where,
        )  # fmt: skip
    figure.update_layout(margin={"r": 118})


def _apart(at: Sequence[float], tall: Sequence[float], height: float) -> list[float]:
    """Return where the middles of labels go so that none touches another. `at`: where they would be, ascending. Labels
    move upwards until none touches the one below, then down as far as the highest is over the top."""
    places, free = [], -math.inf
    for middle, name in zip(at, tall, strict=True):
        places.append(max(middle, free + name / 2))
        free = places[-1] + name / 2
    free = height + LINE
    for i in reversed(range(len(places))):
        places[i] = min(places[i], free - tall[i] / 2)
        free = places[i] - tall[i] / 2
    return places


def blank(title: str, subtitle: str, x: str, y: str) -> go.Figure:
    """Return a figure without data, in the look that all charts share."""
    figure = go.Figure(
        layout={
            "template": "none",
            "title": {
                "text": f"<b>{title}</b><br><span style='font-size:12px'>{subtitle}</span>",
                "font": {"size": 14},
                "x": 0,
                "xref": "container",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 12, "l": 4},
            },
            "font": {"family": "ui-sans-serif, system-ui, sans-serif", "size": 12, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 320,
            "margin": {"l": 48, "r": 12, "t": 60, "b": 44},
            "showlegend": False,
            "hoverlabel": {"bgcolor": INK, "font": {"color": "white"}, "align": "left"},
            "xaxis": {"title": {"text": x}},
            "yaxis": {"title": {"text": y}},
        }
    )
    return style_axes(figure)


def style_axes(figure: go.Figure) -> go.Figure:
    """Give all axes the common look, including those of subplots, which are added later."""
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True, "fixedrange": True}
    titles = {"standoff": 8, "font": {"size": 12}}
    return figure.update_xaxes(showgrid=False, title=titles, **axis).update_yaxes(title=titles, **axis)


def empty(figure: go.Figure, sentence: str) -> go.Figure:
    """Return the figure with a sentence in place of data."""
    figure.update_layout(meta=sentence)
    figure.add_annotation(text=sentence, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 14})
    return figure.update_xaxes(visible=False).update_yaxes(visible=False)


def batches(points: Sequence[BatchPoint]) -> go.Figure:
    """Draw the predicted speed-up by batch size, with open marks where the pass is wider than any that was measured."""
    figure = blank("Batch, predicted", "open marks: wider than any measured pass", "sequences", "speed-up")
    symbols = ["circle-open" if point.extrapolated else "circle" for point in points]
    add_line(
        figure, "predicted", ASSISTED, x=[str(point.batch) for point in points],
        y=[point.speedup for point in points], line={"dash": "dash"}, marker={"symbol": symbols, "size": 8},
        hovertemplate="%{y:.2f}×<extra>batch of %{x}</extra>",
    )  # fmt: skip
    add_unity(figure, log=False)
    sentences = [f"{point.batch}: {point.speedup:.2f}." for point in points]
    figure.update_layout(meta=" ".join(["Predicted speed-up by batch size.", *sentences]))
    return figure.update_xaxes(type="category").update_yaxes(rangemode="tozero")


def load(points: Sequence[LoadPoint]) -> go.Figure:
    """Draw the mean time of an answer by the rate of requests, for both ways of decoding, with its interval over the
    seeds of the simulation. Without points the chart says that the simulation is running."""
    subtitle = "mean time of an answer, 95 % interval, log scale"
    figure = blank("Load, simulated", subtitle, "requests/s", "seconds")
    if not points:
        return empty(figure, "Simulating …")
    rates, ends = [point.rate for point in points], []
    for name, bands, color in (
        ("standard", [point.standard for point in points], STANDARD),
        ("assisted", [point.assisted for point in points], ASSISTED),
    ):
        means = [it.mean for it in bands]
        bars = error_bars(means, [(it.low, it.high) for it in bands]) | {"color": color}
        said = "%{y:.1f} s<extra>" + name + ", %{x:.2g}/s</extra>"
        add_line(figure, name, color, x=rates, y=means, error_y=bars, line={"dash": "dash"}, hovertemplate=said)
        ends.append((name, means[-1], color))
    sentences = [f"{it.rate:.2g}/s: {it.standard.mean:.1f} and {it.assisted.mean:.1f} s." for it in points]
    figure.update_layout(meta=" ".join(["Mean time of an answer by load, standard and assisted.", *sentences]))
    ticks = {"type": "log", "dtick": "D2", "tickformat": "~g"}
    found = [value for point in points for it in (point.standard, point.assisted) for value in (it.low, it.high)]
    axis = {**ticks, "range": (math.log10(min(found)) - 0.1, math.log10(max(found)) + 0.1)}
    label_lines(figure, ends, axis)
    return figure.update_xaxes(**ticks).update_yaxes(**axis)
