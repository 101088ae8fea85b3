"""A load test as a table, as sentences and as charts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
import plotly.io as pio

from playground.metrics.load import Answered, Gain, Level, Limits, Percentiles, Point, crossing, gains, pays, points
from playground.views import charts
from playground.views.suite import Table

HEAD = (
    "lane", "level", "requests", "tok/s in all", "tok/s a user", "TTFT ms", "TPOT ms", "chunk gap ms", "goodput /s",
    "accepted",
)  # fmt: skip


def table(answered: Sequence[Answered], limits: Limits) -> Table:
    """A line for each level and lane."""
    found = sorted(points(answered, limits), key=lambda point: (_size(point.level), point.lane != answered[0].lane))
    return Table("By level", HEAD, tuple(map(_cells, found)), numbers=len(HEAD) - 1)


def definitions(limits: Limits) -> str:
    return (
        "TTFT, TPOT and chunk gap: median / 99th percentile. TPOT = (latency − TTFT) ÷ (tokens − 1), which AIPerf "
        "calls inter-token latency; the chunk gap is what vLLM calls so. tok/s a user = 1 ÷ median TPOT. "
        f"Goodput: requests a second with TTFT ≤ {1000 * limits.ttft_s:g} ms and TPOT ≤ {1000 * limits.tpot_s:g} ms."
    )


def verdict(answered: Sequence[Answered], baseline: str) -> list[str]:
    """The speed-up of each other lane at each level, and where it falls through 1, as sentences."""
    said = []
    found = sorted(gains(answered, baseline), key=lambda gain: gain.lane)
    for lane, group in itertools.groupby(found, key=lambda gain: gain.lane):
        of_lane = list(group)
        curve = ", ".join(f"{gain.speedup:.2f}× at {gain.level}{_interval(gain)}" for gain in of_lane)
        unit = "users" if of_lane[0].level.concurrency else "requests a second"
        paying = [str(gain.level) for gain in of_lane if pays(gain)]
        at = crossing(of_lane)
        if not all(gain.interval for gain in of_lane):
            end = "Too few requests to tell: send 8 or more of each level."
        elif not paying:
            end = "Speculation pays at none of these levels."
        elif at:
            end = f"Speculation stops paying at about {at:.1f} {unit}."
        else:
            end = f"Speculation pays at these levels: {', '.join(paying)}."
        said.append(f"{lane} against {baseline}: {curve}. {end}")
    failed = [row for row in answered if row.error]
    if failed:
        said.append(f"{len(failed)} of {len(answered)} requests failed. The first: {failed[0].error}")
    return said


def pareto(answered: Sequence[Answered], limits: Limits) -> go.Figure:
    """Tokens per second that a user sees against those of all users: one line a lane, one point a level."""
    figure = charts.blank(
        "Throughput against speed", "one point a level", "tok/s that a user sees (1 ÷ median TPOT)", "tok/s in all"
    )
    for lane, color, group in _by_lane(points(answered, limits)):
        known = [point for point in group if point.per_user is not None]
        figure.add_scatter(
            x=[point.per_user for point in known],
            y=[point.tokens_per_s for point in known],
            text=[str(point.level) for point in known],
            name=escape(lane),
            mode="lines+markers+text",
            textposition="top center",
            cliponaxis=False,
            line={"color": color, "width": 2},
            hovertemplate="level %{text}: %{x:.1f} tok/s a user, %{y:.1f} tok/s in all",
        )
    return figure.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")


def speedup(answered: Sequence[Answered], baseline: str) -> go.Figure:
    """The speed-up of each other lane over the level, with its interval."""
    found = gains(answered, baseline)
    rate = any(gain.level.rate for gain in found)
    axis = "requests a second" if rate else "users at the same time"
    figure = charts.blank("Speed-up under load", f"over {escape(baseline)}, by time per token", axis, "speed-up")
    for i, lane in enumerate(dict.fromkeys(gain.lane for gain in found)):
        group = sorted((gain for gain in found if gain.lane == lane), key=lambda gain: _size(gain.level))
        ends = [gain.interval or (gain.speedup, gain.speedup) for gain in group]
        figure.add_scatter(
            x=[_size(gain.level) for gain in group],
            y=[gain.speedup for gain in group],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - gain.speedup for gain, (_, high) in zip(group, ends, strict=True)],
                "arrayminus": [gain.speedup - low for gain, (low, _) in zip(group, ends, strict=True)],
            },
            name=escape(lane),
            mode="lines+markers",
            line={"color": charts.OTHERS[i % len(charts.OTHERS)], "width": 2},
        )
    figure.add_hline(y=1, line={"color": charts.STANDARD, "dash": "dot"})
    return figure.update_xaxes(type="log", dtick=0.30103).update_yaxes(rangemode="tozero")


def latency(answered: Sequence[Answered], limits: Limits) -> go.Figure:
    """Time to first token by level, median and 99th percentile."""
    figure = charts.blank("Time to first token", "median, and 99th percentile dotted", "level", "milliseconds")
    for lane, color, group in _by_lane(points(answered, limits)):
        known = [(str(point.level), point.ttft) for point in group if point.ttft]
        for name, dash in (("p50", "solid"), ("p99", "dot")):
            figure.add_scatter(
                x=[level for level, _ in known],
                y=[1000 * getattr(ttft, name) for _, ttft in known],
                name=f"{escape(lane)}, {name.upper()}",
                mode="lines+markers",
                line={"color": color, "dash": dash},
            )
    return figure.update_xaxes(type="category").update_yaxes(rangemode="tozero")


def _by_lane(found: Sequence[Point]) -> list[tuple[str, str, list[Point]]]:
    """Each lane with its colour and its points, the level that is least first."""
    lanes = dict.fromkeys(point.lane for point in found)
    colors = [charts.STANDARD, *charts.OTHERS]
    return [
        (lane, colors[i % len(colors)], sorted((p for p in found if p.lane == lane), key=lambda p: _size(p.level)))
        for i, lane in enumerate(lanes)
    ]


def _size(level: Level) -> float:
    return float(level.concurrency or level.rate or 0)


def _cells(point: Point) -> tuple[str, ...]:
    requests = f"{point.requests}" + (f", {point.failed} failed" if point.failed else "")
    return (
        point.lane,
        str(point.level),
        requests,
        f"{point.tokens_per_s:.1f}",
        "–" if point.per_user is None else f"{point.per_user:.1f}",
        _ms(point.ttft),
        _ms(point.tpot),
        _ms(point.chunk_gap),
        f"{point.goodput:.2f}",
        "–" if point.acceptance_rate is None else f"{point.acceptance_rate:.0%}",
    )


def _ms(found: Percentiles | None) -> str:
    return "–" if found is None else f"{1000 * found.p50:.0f} / {1000 * found.p99:.0f}"


def _interval(gain: Gain) -> str:
    return " ({:.2f} to {:.2f})".format(*gain.interval) if gain.interval else ""


def page(answered: Sequence[Answered], limits: Limits, baseline: str) -> str:
    """The charts as one HTML file that opens without a network."""
    figures = [pareto(answered, limits), speedup(answered, baseline), latency(answered, limits)]
    parts = [pio.to_html(figure, full_html=False, include_plotlyjs=i == 0) for i, figure in enumerate(figures)]
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in [*verdict(answered, baseline), definitions(limits)])
    return f"<!doctype html><meta charset=utf-8><title>Load test</title>{said}{''.join(parts)}"
