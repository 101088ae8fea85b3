"""Plotly figures of suites, sweeps and recommendations, in the style of `charts`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from playground.format import count, ratio
from playground.lane import AXES, label
from playground.results import ALL, STANDARD, Point, Recommendation, SuiteResult, Summary, SweepResult, names_of, rank
from playground.views import charts
from playground.views.charts import ASSISTED, OTHERS

NAME = 26  # characters in a line of a lane's name
PREDICTED = "#8A6100"
COLUMNS = 2  # small multiples in a row
TITLE, LABEL = 20, 12  # characters in a line above a small multiple, and under bars: a phone shows no more


def speedups(result: SuiteResult, title: str = "Speed-up") -> go.Figure:
    """Draw the pooled speed-up of every lane with its interval, the fastest on top; small dots are its categories. A
    lane that was not seen to be faster than standard decoding is grey. The axis is logarithmic, so that twice and half
    are equally far from 1."""
    ranking = rank(result.rows) if result.rows else []
    lanes = [it for it in reversed(ranking) if it.lane != STANDARD]
    names = names_of(result.lanes)
    parts = {it.lane: _split(names.get(it.lane, it.lane), result.of(it.lane).prompts) for it in lanes}
    settings_of_all = {settings for _, settings in parts.values()}
    same = len(settings_of_all) == 1
    notes = [*map(escape, settings_of_all)] * same + ["95 % intervals; small dots: categories"]
    figure = charts.blank(title, ", ".join(notes), "speed-up, log scale", "")
    if not lanes:
        return charts.empty(figure, "No prompt was run.")
    for lane in lanes:
        color = ASSISTED if lane.gains else charts.STANDARD
        drafter, settings = parts[lane.lane]
        name = _broken(drafter, NAME) + ("" if same else f"<br>{escape(settings)}")
        of_categories = [it for it in result.summaries if it.lane == lane.lane and it.category != ALL]
        figure.add_scatter(
            x=[it.overall for it in of_categories], y=[name] * len(of_categories), mode="markers",
            marker={"color": color, "size": 5, "opacity": 0.5}, name=name,
            customdata=[[escape(it.category), count(it.prompts, "prompt")] for it in of_categories],
            hovertemplate="%{x:.2f}× on %{customdata[0]}, %{customdata[1]}<extra>%{y}</extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[lane.speedup], y=[name], mode="markers", marker={"color": color, "size": 11}, name=name,
            error_x=charts.error_bars([lane.speedup], [lane.interval]), hovertemplate="%{x:.2f}×<extra>%{y}</extra>",
        )  # fmt: skip
    figure.add_vline(x=1, line=charts.UNITY)
    figure.add_annotation(
        text="no drafter", x=0, y=1, yref="paper", yanchor="bottom", showarrow=False, font={"size": 11}
    )
    sentences = [f"{names.get(it.lane, it.lane)}: {ratio(it.speedup, it.interval)}." for it in reversed(lanes)]
    meta = " ".join(["Speed-up of each lane over all prompts, the fastest first.", *sentences])
    figure.update_layout(height=150 + (30 if same else 40) * len(lanes), meta=meta)
    shown = [it for it in result.summaries if it.lane != STANDARD]
    axis = charts.ratio_axis([it.overall for it in shown], [it.interval for it in lanes])
    return figure.update_xaxes(**axis).update_yaxes(showgrid=False)


def _split(name: str, prompts: int) -> tuple[str, str]:
    """Return a lane's drafter, and its settings with the number of prompts."""
    drafter, _, settings = name.partition(" (")
    return drafter, (settings[:-1] + ", " if settings else "") + count(prompts, "prompt")


def sweep(result: SweepResult) -> go.Figure:
    """Draw speed-up over the setting with its interval, the prediction of the formulas, and under both the mean
    accepted length on the same axis."""
    name = AXES[result.axis]
    measured = [(point, s) for point in result.points for s in point.summaries if s.category == ALL]
    best = sum(bool(point.ties) for point, _ in measured)
    marked = {0: "", 1: "; star: the best"}.get(best, "; diamonds: no clear best")
    figure = charts.blank("Speed-up", f"pooled, with 95 % intervals{marked}", "", "")
    if not measured:
        return charts.empty(figure, "No prompt was run.")
    n = count(measured[0][1].prompts, "prompt")
    make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.66, 0.34], vertical_spacing=0.06, figure=figure)
    _measured(figure, measured, name, "no drafter", row=1, col=1, marker=_marks([point for point, _ in measured]))
    predicted = [(it.value, it.predicted) for it in result.points if it.predicted]
    if predicted:
        charts.add_line(
            figure, "predicted", PREDICTED, x=[value for value, _ in predicted], y=[it.speedup for _, it in predicted],
            mode="lines", line={"dash": "dash"}, hovertemplate="%{y:.2f}× predicted<extra></extra>", row=1, col=1,
        )  # fmt: skip
    charts.add_line(
        figure, "tokens per check", charts.STANDARD, x=[point.value for point, _ in measured],
        y=[summary.mean_accepted_length for _, summary in measured], row=2, col=1,
        hovertemplate="%{y:.2f} tokens per check<extra>" + f"{name} %{{x:g}}</extra>",
    )  # fmt: skip
    sentences = [f"{name} {point.value:g}: {summary.overall:.2f}." for point, summary in measured]
    figure.update_layout(height=420, meta=" ".join([f"Speed-up by {name}.", *sentences, *_marked(measured)]))
    ends = [("measured", measured[-1][1].overall, ASSISTED)]
    ends += [("predicted", predicted[-1][1].speedup, PREDICTED)] if predicted else []
    axis = _axis([summary for _, summary in measured], [it.speedup for _, it in predicted])
    charts.label_lines(figure, ends, axis)
    figure.update_yaxes(title_text="tokens per check", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text=f"{name} ({n} at each)", row=2, col=1)
    return charts.style_axes(figure).update_yaxes(title_text="speed-up, log scale", **axis, row=1, col=1)


def by_category(result: SweepResult) -> go.Figure:
    """Draw the speed-up over the setting for each category, as small multiples on one scale."""
    name = AXES[result.axis]
    figure = charts.blank("By category", f"speed-up over {name}; 1 is no drafter", "", "")
    categories = list(dict.fromkeys(s.category for point in result.points for s in point.summaries))
    categories = [category for category in categories if category != ALL]
    if not categories:
        return charts.empty(figure, "No prompt was run.")
    columns = min(COLUMNS, len(categories))
    rows = -(-len(categories) // columns)
    make_subplots(
        rows=rows, cols=columns, figure=figure, shared_yaxes="all", vertical_spacing=0.35 / rows,
        horizontal_spacing=0.05, subplot_titles=[_broken(category, TITLE) for category in categories],
    )  # fmt: skip
    for number, category in enumerate(categories):
        found = [(point, s) for point in result.points for s in point.summaries if s.category == category]
        _measured(figure, found, name, "", row=1 + number // columns, col=1 + number % columns)
    figure.update_annotations(font={"size": 12})
    meta = f"Speed-up by {name}, for {', '.join(categories)}."
    figure.update_layout(height=100 + 180 * rows, margin={"t": 76}, meta=meta)  # names of two lines
    axis = _axis([s for point in result.points for s in point.summaries if s.category != ALL])
    return charts.style_axes(figure).update_yaxes(**axis)


def _broken(category: str, width: int) -> str:
    """Wrap a name into lines of at most `width` characters."""
    return "<br>".join(map(escape, textwrap.wrap(category.replace("_", " "), width)))


def refined(result: Recommendation) -> go.Figure:
    """Draw the speed-up of every refined drafter over the lookahead, with its interval; the chosen setting is a star.
    The drafter that was confirmed has the first colour, as in `speedups`."""
    figure = charts.blank("Refining", "with 95 % intervals; 1 is no drafter", "lookahead", "speed-up")
    lanes, sentences, ends = result.refined.lanes, [], []
    confirmed = sorted(result.confirmed.lanes, key=lambda lane: -result.confirmed.of(label(lane)).overall)
    for drafter, color in zip(dict.fromkeys(lane.name for lane in (*confirmed, *lanes)), OTHERS, strict=False):
        here = [lane for lane in lanes if lane.name == drafter]
        summaries = [result.refined.of(label(lane)) for lane in here]
        symbols = ["star" if lane == result.lane else "circle" for lane in here]
        charts.add_line(
            figure, drafter, color, x=[lane.lookahead for lane in here],
            y=[summary.overall for summary in summaries], error_y=error_bars(summaries),
            marker={"symbol": symbols, "size": [14 if symbol == "star" else 7 for symbol in symbols]},
            hovertemplate="%{y:.2f}×<extra>" + escape(drafter) + " %{x}</extra>",
        )  # fmt: skip
        ends.append((drafter, summaries[-1].overall, color))
        sentences += [f"{drafter} {it.lookahead}: {s.overall:.2f}." for it, s in zip(here, summaries, strict=True)]
    charts.add_unity(figure)
    axis = _axis([result.refined.of(label(lane)) for lane in lanes])
    charts.label_lines(figure, ends, axis)
    figure.update_layout(meta=" ".join(["Speed-up by lookahead.", *sentences]))
    return figure.update_yaxes(title_text="speed-up, log scale", **axis)


def _axis(summaries: Sequence[Summary], more: Sequence[float] = ()) -> dict[str, Any]:
    """Return the axis of pooled speed-ups and their intervals. `more`: other values drawn on it."""
    return charts.ratio_axis([*(it.overall for it in summaries), *more], [it.interval for it in summaries])


def _measured(figure: go.Figure, found: Sequence[tuple[Point, Summary]], name: str, unity: str, **more: Any) -> None:
    """Add the measured line and the line at 1. `unity`: the label of the latter."""
    charts.add_line(
        figure, "measured", ASSISTED, x=[point.value for point, _ in found],
        y=[summary.overall for _, summary in found], error_y=error_bars([summary for _, summary in found]),
        hovertemplate="%{y:.2f}×<extra>" + f"{name} %{{x:g}}</extra>", **more,
    )  # fmt: skip
    charts.add_unity(figure, unity, row=more["row"], col=more["col"])


def error_bars(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the intervals of the pooled speed-ups as error bars."""
    return charts.error_bars([summary.overall for summary in summaries], [summary.interval for summary in summaries])


def _marks(points: Sequence[Point]) -> dict[str, Any]:
    """Mark the best value over all prompts with a star where it is clear, else each that ties with a diamond."""
    best = "star" if sum(bool(point.ties) for point in points) == 1 else "diamond"
    symbols = [best if point.ties else "circle" for point in points]
    return {"symbol": symbols, "size": [14 if symbol != "circle" else 7 for symbol in symbols], "color": ASSISTED}


def _marked(found: Sequence[tuple[Point, Summary]]) -> list[str]:
    """Describe the marks in words."""
    ties = [f"{point.value:g}" for point, _ in found if point.ties]
    if not ties:
        return []
    return [f"Best, a star: {ties[0]}." if len(ties) == 1 else f"Ties, diamonds: {', '.join(ties)}."]
