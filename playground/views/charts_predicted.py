"""What a finished run predicts for a batch and under load, as Plotly figures in the style of `charts`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from playground.theory import BatchPoint, LoadPoint
from playground.views import charts
from playground.views.charts import ASSISTED, STANDARD


def batches(points: Sequence[BatchPoint]) -> go.Figure:
    """The predicted speed-up by batch size; open marks where the pass is wider than any that was measured."""
    figure = charts.blank("Batch, predicted", "open marks: wider than any measured pass", "sequences", "speed-up")
    symbols = ["circle-open" if point.extrapolated else "circle" for point in points]
    charts.add_line(
        figure,
        "predicted",
        ASSISTED,
        x=[str(point.batch) for point in points],
        y=[point.speedup for point in points],
        line={"dash": "dash"},
        marker={"symbol": symbols, "size": 8},
        hovertemplate="%{y:.2f}×<extra>batch of %{x}</extra>",
    )
    charts.add_unity(figure, log=False)
    sentences = [f"{point.batch}: {point.speedup:.2f}." for point in points]
    figure.update_layout(meta=" ".join(["Predicted speed-up by batch size.", *sentences]))
    return figure.update_xaxes(type="category").update_yaxes(rangemode="tozero")


def load(points: Sequence[LoadPoint]) -> go.Figure:
    """The mean time of an answer by the rate of requests, of both ways of decoding, with its interval over the seeds of
    the simulation. No points: not simulated yet."""
    subtitle = "mean time of an answer, 95 % interval, log scale"
    figure = charts.blank("Load, simulated", subtitle, "requests/s", "seconds")
    if not points:
        return charts.empty(figure, "Simulating …")
    rates, ends = [point.rate for point in points], []
    for name, bands, color in (
        ("standard", [point.standard for point in points], STANDARD),
        ("assisted", [point.assisted for point in points], ASSISTED),
    ):
        means = [it.mean for it in bands]
        charts.add_line(
            figure,
            name,
            color,
            x=rates,
            y=means,
            error_y=charts.error_bars(means, [(it.low, it.high) for it in bands]) | {"color": color},
            line={"dash": "dash"},
            hovertemplate="%{y:.1f} s<extra>" + name + ", %{x:.2g}/s</extra>",
        )
        ends.append((name, means[-1], color))
    sentences = [f"{it.rate:.2g}/s: {it.standard.mean:.1f} and {it.assisted.mean:.1f} s." for it in points]
    figure.update_layout(meta=" ".join(["Mean time of an answer by load, standard and assisted.", *sentences]))
    ticks = {"type": "log", "dtick": "D2", "tickformat": "~g"}
    found = [value for point in points for it in (point.standard, point.assisted) for value in (it.low, it.high)]
    axis = {**ticks, "range": (math.log10(min(found)) - 0.1, math.log10(max(found)) + 0.1)}
    charts.label_lines(figure, ends, axis)
    return figure.update_xaxes(**ticks).update_yaxes(**axis)
