"""A load test as tables, sentences, charts and lines for a spreadsheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from playground.format import UNKNOWN, bracketed, number, percent, ratio
from playground.metrics.load import Answered, Gain, Limits, Percentiles, Point, crossing, pays
from playground.results import LoadResult
from playground.views import charts, compared, engines, report, table
from playground.views.report import Report
from playground.views.table import Table

COLUMNS: dict[str, Callable[[Point], str]] = {
    "lane": lambda it: it.lane,
    "level": lambda it: str(it.level),
    "requests": lambda it: f"{it.requests}" + (f", {it.failed} failed" if it.failed else ""),
    "tok/s in all": lambda it: number(it.tokens_per_s, 1),
    "tok/s a user": lambda it: number(it.per_user, 1),
    "TTFT ms": lambda it: _ms(it.ttft),
    "TPOT ms": lambda it: _ms(it.tpot),
    "chunk gap ms": lambda it: _ms(it.chunk_gap),
    "goodput /s": lambda it: number(it.goodput),
    "accepted": lambda it: percent(it.acceptance_rate),
}  # of `by_level`


@report.of.register
def _(result: LoadResult) -> Report:
    return Report(
        f"Load on {result.lanes[0].target}",
        setting(result),
        findings(result),
        [speedup(result), pareto(result), latency(result)],
        [by_level(result.points), definitions(result.limits)],
        deploy=engines.load_settings(engines.schedule(result)),
    )


@compared.settings.register
def _(result: LoadResult) -> dict[str, Any]:
    more = {"prompts": (result.request.question,), "requests": result.requests}
    found = compared.settings_of(result.request, None, **more)
    for i, environment in enumerate(result.environments, 1):
        found |= compared.settings_of_environment(environment, f"server {i}, ")
    return found


@compared.figures.register
def _(a: LoadResult, b: LoadResult) -> Table:
    """Return the speed-up of each lane at each level."""
    first, second = ({(it.lane, str(it.level)): (it.speedup, it.interval) for it in of.gains} for of in (a, b))
    return compared.speedup_table(("lane", "level"), first, second)


@table.lines.register
def _(result: LoadResult) -> list[dict[str, Any]]:
    return [_request(row) for row in result.rows]


def _request(row: Answered) -> dict[str, Any]:
    times = {"ttft_s": row.ttft_s, "latency_s": row.latency_s, "tpot_s": row.tpot_s} if row.arrivals else {}
    return {
        "level": str(row.level), "lane": row.lane, "number": row.number, "question": row.question, "sent_s": row.sent_s,
        "tokens": row.tokens, **dict.fromkeys(("ttft_s", "latency_s", "tpot_s")), **times, "drafted": row.drafted,
        "accepted": row.accepted, "error": row.error,
    }  # fmt: skip


def setting(result: LoadResult) -> str:
    """Return servers, versions and settings."""
    servers = "; ".join(
        f"{where.device_name}, {', '.join(f'{name} {version}' for name, version in where.versions.items())}"
        for where in result.environments
    )
    request = result.request
    how = f"arrival times by seed {result.seed}" if result.levels[0].rate else "at least one a user"
    return (
        f"{servers}; {request.max_new_tokens} new tokens, temperature {request.temperature:g}; "
        f"{result.requests} requests of each level, {how}"
    )


def by_level(points: Sequence[Point]) -> Table:
    """Return a row for each level and lane."""
    baseline = points[0].lane
    found = sorted(points, key=lambda point: (point.level.size, point.lane != baseline))
    rows = tuple(tuple(cell(point) for cell in COLUMNS.values()) for point in found)
    return Table("By level", tuple(COLUMNS), rows, numbers=len(COLUMNS) - 1)


def definitions(limits: Limits) -> Table:
    """Return a table that defines the columns of `by_level`."""
    good = f"TTFT ≤ {1000 * limits.ttft_s:g} ms and TPOT ≤ {1000 * limits.tpot_s:g} ms"
    rows = (
        ("tok/s in all", "output tokens of whole answers ÷ (last token − first request)"),
        ("tok/s a user", "1 ÷ median TPOT"),
        ("TTFT", "first token − sent, median / 99th percentile"),
        ("TPOT", "(last token − first token) ÷ (tokens − 1), median / 99th percentile: AIPerf's inter-token latency"),
        ("chunk gap", "between two chunks of one or more tokens, median / 99th percentile: vLLM's inter-token latency"),
        ("goodput", f"requests a second with {good}"),
        (
            "speed-up",
            "what one request gains: pooled latency per token of the baseline ÷ the lane's, over requests that both "
            "answered. Not the ratio of their tok/s in all, which the last answers of a level weigh on",
        ),
    )
    return Table("What the figures mean", ("figure", "definition"), rows, numbers=0)


def findings(result: LoadResult) -> list[str]:
    """Say where speculation stops paying, the speed-up at each level, and what is missing."""
    baseline, said = result.lanes[0].name, []
    for lane, group in itertools.groupby(sorted(result.gains, key=lambda gain: gain.lane), key=lambda gain: gain.lane):
        gains = sorted(group, key=lambda gain: gain.level.size)
        curve = ", ".join(f"{ratio(gain.speedup)} at {gain.level}{bracketed(gain.interval)}" for gain in gains)
        said += [_verdict(gains), f"{lane} against {baseline}, by the time per token of a request: {curve}."]
    if not said:
        said.append("Only one server has answered. A speed-up takes both.")
    finished = {(point.level, point.lane) for point in result.points}
    missing = [level for level in result.levels if any((level, lane.name) not in finished for lane in result.lanes)]
    if missing:
        levels = ", ".join(map(str, missing))
        said.append(f"{len(result.levels) - len(missing)} of {len(result.levels)} levels finished. Missing: {levels}.")
    if failed := result.failures:
        said.append(f"{len(failed)} of {len(result.rows)} requests failed. The first: {failed[0].error}")
    return said


def _verdict(gains: Sequence[Gain]) -> str:
    """Say where one lane pays. `gains`: its levels in order."""
    paying = [str(gain.level) for gain in gains if pays(gain)]
    if not all(gain.interval for gain in gains):
        return "Too few requests to tell: send 8 or more of each level."
    if not paying:
        return "At none of these levels was speculation clearly faster."
    if at := _ceases(gains):
        unit = "users" if gains[0].level.concurrency else "requests a second"
        return f"Speculation stops paying at about {at:.1f} {unit}."
    return f"Speculation pays at these levels: {', '.join(paying)}."


def _ceases(gains: Sequence[Gain]) -> float | None:
    """Return where a lane stops paying; None where it did not pay before, or does not stop."""
    return crossing(gains) if any(map(pays, gains)) else None


def pareto(result: LoadResult) -> go.Figure:
    """Draw tokens per second that a user sees against those of all users: one line a lane, one point a level."""
    unit = "requests a second" if result.levels[0].rate else "users"
    seen = "tok/s that a user sees (1 ÷ median TPOT)"
    figure = charts.blank("Throughput against speed", f"numbers at the points: {unit}", seen, "tok/s in all")
    sentences, ends = [], []
    for at, (lane, color, points) in enumerate(_by_lane(result)):
        known = [point for point in points if point.per_user is not None]
        if known:
            ends.append((lane, max(known, key=lambda point: point.per_user or 0.0).tokens_per_s, color))
        charts.add_line(
            figure, lane, color, x=[point.per_user for point in known], y=[point.tokens_per_s for point in known],
            text=[str(point.level) for point in known], mode="lines+markers+text",
            textposition=("top center", "bottom center")[at % 2], textfont={"color": color},
            cliponaxis=False, hovertemplate="level %{text}: %{x:.1f} tok/s a user, %{y:.1f} tok/s in all",
        )  # fmt: skip
        sentences += [f"{lane} at {it.level}: {it.per_user:.0f} a user, {it.tokens_per_s:.0f} in all." for it in known]
    axis = charts.count_axis([point.tokens_per_s for point in result.points])
    charts.label_lines(figure, ends, axis)
    figure.update_layout(meta=" ".join(["Tokens per second by level.", *sentences]))
    return figure.update_xaxes(rangemode="tozero").update_yaxes(**axis)


def speedup(result: LoadResult) -> go.Figure:
    """Draw the speed-up of each other lane over the level, with its interval and where it falls through 1."""
    unit = "requests a second" if result.levels[0].rate else "users at the same time"
    figure = charts.blank("Speed-up under load", "by the time per token of a request, 95 % intervals", unit, "speed-up")
    if not result.gains:
        return charts.empty(figure, "A speed-up takes two servers.")
    sentences = []
    ends, colors = [], _colors(result)
    for lane in dict.fromkeys(gain.lane for gain in result.gains):
        gains = sorted((gain for gain in result.gains if gain.lane == lane), key=lambda gain: gain.level.size)
        color, speedups = colors[lane], [gain.speedup for gain in gains]
        ends.append((lane, speedups[-1], color))
        bars = charts.error_bars(speedups, [gain.interval for gain in gains])
        sizes = [gain.level.size for gain in gains]
        charts.add_line(figure, lane, color, x=sizes, y=speedups, error_y=bars, hovertemplate="%{y:.2f}×")
        sentences += [
            f"{lane}: {number(gain.speedup)} at {gain.level.words}{bracketed(gain.interval)}." for gain in gains
        ]
        if at := _ceases(gains):
            figure.add_scatter(
                x=[at],
                y=[1],
                name=f"1.0 at about {at:.1f}",
                mode="markers+text",
                text=[f"{at:.1f}"],
                textposition="top right",
                marker={"color": color, "symbol": "x", "size": 10},
                hovertemplate=f"falls through 1 at about {at:.1f} {unit}<extra></extra>",
            )
    charts.add_unity(figure, "without speculation")
    axis = charts.ratio_axis([it.speedup for it in result.gains], [it.interval for it in result.gains])
    charts.label_lines(figure, ends, axis)
    figure.update_layout(meta=" ".join(["Speed-up by level.", *sentences]))
    sizes = sorted({level.size for level in result.levels})
    figure.update_xaxes(type="log", range=(math.log10(sizes[0]) - 0.1, math.log10(sizes[-1]) + 0.1))
    figure.update_xaxes(tickvals=sizes, ticktext=[f"{size:g}" for size in sizes])
    return figure.update_yaxes(title_text="speed-up, log scale", **axis)


def latency(result: LoadResult) -> go.Figure:
    """Draw time to first token by level, median and 99th percentile."""
    figure = charts.blank("Time to first token", "median; dotted: 99th percentile", "level", "milliseconds")
    sentences, ends = [], []
    for lane, color, points in _by_lane(result):
        known = [(str(point.level), point.ttft) for point in points if point.ttft]
        ends += [(lane, 1000 * ttft.p50, color) for _, ttft in known[-1:]]
        for name, dash in (("p50", "solid"), ("p99", "dot")):
            y = [1000 * getattr(ttft, name) for _, ttft in known]
            charts.add_line(
                figure, f"{lane}, {name.upper()}", color, x=[level for level, _ in known], y=y, line={"dash": dash}
            )
        sentences += [f"{lane} at {level}: {_ms(ttft)} ms." for level, ttft in known]
    axis = charts.count_axis([1000 * point.ttft.p99 for point in result.points if point.ttft])
    charts.label_lines(figure, ends, axis)
    figure.update_layout(meta=" ".join(["Time to first token by level, median / 99th percentile.", *sentences]))
    return figure.update_xaxes(type="category").update_yaxes(**axis)


def _by_lane(result: LoadResult) -> list[tuple[str, str, list[Point]]]:
    """Return each lane with its colour and its points, the lowest level first."""
    points = sorted(result.points, key=lambda point: point.level.size)
    return [(lane, color, [point for point in points if point.lane == lane]) for lane, color in _colors(result).items()]


def _colors(result: LoadResult) -> dict[str, str]:
    """Return the colour of each lane, which all charts share."""
    return dict(zip((lane.name for lane in result.lanes), [charts.STANDARD, *charts.OTHERS], strict=False))


def _ms(found: Percentiles | None) -> str:
    return UNKNOWN if found is None else f"{1000 * found.p50:.0f} / {1000 * found.p99:.0f}"
