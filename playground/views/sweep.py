"""A sweep's result as sentences, tables and charts: over a setting, over the depth of the context, and over rates of
acceptance, where all points but the measured one are synthetic."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import isclose, log
from typing import Any

import numpy as np
import plotly.graph_objects as go

from playground import metrics
from playground.format import UNKNOWN, count, milliseconds, number, percent, ratio
from playground.lane import AXES, label
from playground.metrics import AtDepth, DepthFigures, PositionAcceptance
from playground.results import STANDARD, LaneDepths, Point, Summary, SweepResult, names_of
from playground.theory.lookahead import ENOUGH, TOLERANCE
from playground.views import charts, charts_suite, compared, ranking, report, suite
from playground.views import table as spreadsheet
from playground.views.charts import ASSISTED
from playground.views.ranking import FEW
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table

NO_PREDICTION = (
    f"No predicted curve: it needs the rounds of chains, not trees, and at least {ENOUGH} that drafted at the largest "
    "lookahead."
)
FALLS = (
    "Acceptance falls as more is drafted, whatever that does to the speed: it cannot rank draft lengths. Choose by the "
    "speed-up."
)


COLORS = {"synthetic": charts.STANDARD, "measured": ASSISTED}


@report.of.register
def _(result: SweepResult) -> Report:
    title, setting = suite.title(result.suite), suite.setting(result.suite, result.axis)
    by_prompt = suite.by_prompt(result.suite)
    if result.axis == "depth":
        drawn = [speedup_by_depth(result), tokens_by_depth(result)]
        tables = [by_depth(result.depths, names_of(result.suite.lanes))]
        return Report(f"Depth of {title}", setting, findings(result), drawn, tables, [by_prompt])
    if result.axis == "acceptance":
        folded = [suite.by_category(result.suite), by_prompt]
        shown = findings(result), [curve(result)], [by_rate(result)]
        return Report(f"Speed-up over acceptance: {title}", setting, *shown, folded)
    tables = [by_value(result), by_category(result), by_position(result)]
    axis = AXES[result.axis]
    return Report(
        f"{axis[0].upper()}{axis[1:]} of {title}",
        setting,
        findings(result),
        [charts_suite.sweep(result), charts_suite.by_category(result)],
        [table for table in tables if len(table.columns) > 1],
        [by_prompt],
        ranking.deploy(result.suite),
    )


compared.comparable.register(SweepResult, lambda result: result.suite)


@spreadsheet.lines.register
def _(result: SweepResult) -> list[dict[str, Any]]:
    return _lines_by_depth(result) if result.axis == "depth" else suite.lines(result.suite)


def by_value(result: SweepResult) -> Table:
    """Return a row for each value, over all prompts."""
    predicted = any(point.predicted for point in result.points)
    columns = (AXES[result.axis], "verdict", "speed-up, pooled", *["predicted"] * predicted, "runs in", "macro")
    columns += ("tokens/s", "tokens per check", "accepted", "identical")
    engine = ranking.runs_in(result.suite.lanes)
    verdicts = ranking.verdicts(result.suite)
    rows = tuple(
        _row(it, verdicts.get(it.lane, ""), engine.get(it.lane, UNKNOWN), predicted=predicted) for it in result.points
    )
    return Table("By value", columns, rows, numbers=len(columns) - 2, words=("runs in",))


def by_position(result: SweepResult) -> Table:
    """Return conditional acceptance by position in the draft: among the drafts whose earlier positions were all
    accepted."""
    depth = max((p.position for point in result.points if point.overall for p in point.overall.positions), default=0)
    rows = []
    for point in result.points:
        at = {p.position: p for p in point.overall.positions} if point.overall else {}
        rows.append((f"{point.value:g}", *(_share(at[i]) if i in at else "" for i in range(1, depth + 1))))
    columns = (AXES[result.axis], *map(str, range(1, depth + 1)))
    return Table("Acceptance by position in the draft, if reached", columns, tuple(rows), numbers=depth)


def _share(found: PositionAcceptance) -> str:
    """Show counts instead of a percentage below ENOUGH drafts."""
    if found.reached < ENOUGH:
        return f"{found.accepted} of {found.reached}" if found.reached else ""
    return percent(found.accepted / found.reached)


def by_category(result: SweepResult) -> Table:
    """Return the pooled speed-up of each value on each category."""
    categories = list(dict.fromkeys(summary.category for point in result.points for summary in point.summaries))
    rows = []
    for point in result.points:
        speeds = {summary.category: ratio(summary.overall, summary.interval) for summary in point.summaries}
        rows.append((f"{point.value:g}", *(speeds.get(category, UNKNOWN) for category in categories)))
    return Table("Speed-up by category", (AXES[result.axis], *categories), tuple(rows), numbers=len(categories))


def findings(result: SweepResult) -> list[str]:
    """Say what the sweep found, the most important first, and what failed."""
    of = {"depth": _depth_findings, "acceptance": _acceptance_findings}.get(result.axis, _value_findings)
    return [*of(result), *left_out(result.suite.failures)]


def _value_findings(result: SweepResult) -> list[str]:
    """Name the best value and what ties with it, and what acceptance cannot say."""
    sentences = [verdict(result)] if any(point.best for point in result.points) else []
    sentences.extend(_against_prediction(result))
    return [*sentences, FALLS] if result.axis in ("lookahead", "nodes") else sentences


def verdict(result: SweepResult) -> str:
    """Say which value to use, as far as it is clear, for a sweep whose values are chosen for speed."""
    axis, ties = AXES[result.axis], [point for point in result.points if point.ties and point.lane != STANDARD]
    best = next(point for point in result.points if point.best)
    found = {it.lane: it for it in ranking.ranking(result.suite)}
    if best.lane == STANDARD or best.lane not in found:
        return f"No {axis} was faster than standard decoding."
    gain = ratio(found[best.lane].speedup, found[best.lane].interval)
    if not found[best.lane].interval:
        return f"The fastest {axis} was {best.value:g}, {gain}: {FEW}."
    if not any(found[point.lane].gains for point in ties):
        return f"No {axis} clearly beat standard decoding (the fastest: {best.value:g}, {gain})."
    if len(ties) == 1:
        return f"Best {axis}: {best.value:g}, {gain}."
    others = ", ".join(f"{point.value:g}" for point in ties if point is not best)
    return f"No clear winner: {axis} {best.value:g} gave {gain}; {others} cannot be told from it."


def _against_prediction(result: SweepResult) -> list[str]:
    """Say whether the measurement agrees with the formulas and, where it does not, why."""
    points = [point for point in result.points if point.predicted and point.overall and point.value]
    if not points:
        return [NO_PREDICTION] if result.axis == "lookahead" else []
    deepest = max(point.value for point in points)
    how = f"Predicted from the drafts at lookahead {deepest:g} and the cost of passes"
    misses = [_miss(point) for point in points]
    if not any(misses):
        return [f"{how}: within a tenth of what was measured at every lookahead."]
    return [f"{how}: within a tenth of what was measured, except at {'; at '.join(filter(None, misses))}."]


def _miss(point: Point) -> str:
    """Return a prediction that is more than a tenth off, with the part of it that is off; "" if it is not."""
    predicted, summary = point.predicted, point.overall
    assert predicted and summary and summary.mean_accepted_length
    off = predicted.speedup / summary.overall
    if isclose(off, 1, rel_tol=TOLERANCE):
        return ""
    tokens = predicted.tokens_per_pass / summary.mean_accepted_length
    text = f"{point.value:g}, {predicted.speedup:.2f} predicted and {summary.overall:.2f} measured"
    if summary.interval and summary.interval[0] <= predicted.speedup <= summary.interval[1]:
        return f"{text}, within the noise"
    if abs(log(tokens)) >= abs(log(off / tokens)):
        here, there = predicted.tokens_per_pass, summary.mean_accepted_length
        return f"{text}: {here:.2f} tokens per check predicted, {there:.2f} measured"
    return f"{text}: a round cost {off / tokens:.2f} times what was predicted"


def _row(point: Point, verdict: str, engine: str, *, predicted: bool) -> tuple[str, ...]:
    summary = point.overall
    speedup = [number(point.predicted.speedup if point.predicted else None)] * predicted
    if summary is None:
        return (f"{point.value:g}", "", UNKNOWN, *speedup, engine, *[UNKNOWN] * 5)
    return (
        f"{point.value:g}",
        verdict,
        ratio(summary.overall, summary.interval),
        *speedup,
        engine,
        number(summary.macro),
        *ranking.figures(summary, "tokens/s", "tokens per check", "accepted"),
        ranking.identical(summary),
    )


# --- over the depth of the context ---


def _depth_findings(result: SweepResult) -> list[str]:
    """Return the depth at which speculation stops paying, then how the first and the last span differ."""
    base, ours = (it.figures for it in result.depths)
    name = _name(result)
    spans = [it for it in metrics.speedups(base, ours) if it.speedup]
    stops = metrics.stops_paying(base, ours)
    if not spans:
        said = ["No span of depth has rounds of both lanes."]
    elif stops is None:
        said = [f"{name} still paid at the end, at {ours[-1].high:,} tokens of context."]
    elif stops == ours[0].low:
        said = [f"{name} was nowhere faster than standard decoding."]
    else:
        said = [f"{name} stops paying at a context of about {stops:,} tokens."]
    if len(spans) > 1:
        first, last = spans[0].figures, spans[-1].figures
        said.append(
            f"After {_span(first)} tokens it gave {_speedup(spans[0])}, with {number(first.mean_accepted_length)} "
            f"tokens per check and passes of {milliseconds(first.pass_s)}; after {_span(last)}, "
            f"{_speedup(spans[-1])}, with {number(last.mean_accepted_length)} and {milliseconds(last.pass_s)}."
        )
    rows = [row for row in result.suite.rows if row.lane == STANDARD]
    reused = sum(row.reused or 0 for row in rows)
    said.append(
        f"{count(len(rows), 'turn')} of one conversation, in which {reused:,} tokens came from the cache of the turns "
        "before; each span has the rounds of a few answers."
    )
    return said


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
    columns = ("lane", "context tokens", "passes", "accepted", "tokens per check", "pass", "tokens/s", "speed-up")
    return Table("By depth", columns, tuple(rows), numbers=6)


def speedup_by_depth(result: SweepResult) -> go.Figure:
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


def tokens_by_depth(result: SweepResult) -> go.Figure:
    """Draw the tokens per check over the depth."""
    found = [(_middle(at), at.mean_accepted_length or 0.0) for at in result.depths[1].figures]
    return _line(
        "Tokens per check by depth", f"{_name(result)}, with the target's own", "tokens per check", found,
        _name(result),
    )  # fmt: skip


def _name(result: SweepResult) -> str:
    """Return the name of the drafting lane."""
    return names_of(result.suite.lanes)[result.depths[1].lane]


def _line(title: str, subtitle: str, unit: str, points: Sequence[tuple[float, float]], name: str) -> go.Figure:
    figure = charts.blank(title, subtitle, "tokens of context", unit)
    charts.add_line(
        figure, name, ASSISTED, x=[x for x, _ in points], y=[y for _, y in points],
        hovertemplate="%{y:.2f} at %{x:,.0f} tokens<extra></extra>",
    )  # fmt: skip
    said = [f"{x:,.0f} tokens: {y:.2f}." for x, y in points]
    figure.update_layout(meta=" ".join([f"{title}.", *said]))
    return figure.update_yaxes(rangemode="tozero").update_xaxes(rangemode="tozero")


def _speedup(at: AtDepth) -> str:
    """Return the speed-up with its interval, or with the number of answers where these are too few for an interval."""
    few = at.speedup and not at.interval and at.figures.answers
    return ratio(at.speedup, at.interval) + (f" in {count(at.figures.answers, 'answer')}" if few else "")


def _span(at: DepthFigures) -> str:
    return f"{at.low:,} to {at.high - 1:,}"


def _middle(at: DepthFigures) -> float:
    return (at.low + at.high) / 2


def _lines_by_depth(result: SweepResult) -> list[dict[str, Any]]:
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


# --- over rates of acceptance ---


def by_rate(result: SweepResult) -> Table:
    """Return a table of the measured lane, then of a row for each rate."""
    rows = [("measured", "", *_cells(_measured(result)))]
    rows += [("synthetic", f"{point.value:g}", *_cells(point.overall)) for point in result.points]
    columns = ("verdicts", "rate", "tokens per check", "accepted", "speed-up, pooled", "tokens/s", "identical")
    return Table("Speed-up over acceptance", columns, tuple(rows), numbers=6)


def _cells(summary: Summary | None) -> tuple[str, ...]:
    if summary is None:
        return (UNKNOWN,) * 5
    return (
        *ranking.figures(summary, "tokens per check", "accepted"),
        ratio(summary.overall, summary.interval),
        *ranking.figures(summary, "tokens/s"),
        ranking.identical(summary),
    )


def _acceptance_findings(result: SweepResult) -> list[str]:
    """Return sentences on the measured point, the best speed-up on this machine, the break-even, and what is
    synthetic."""
    found, points = _measured(result), sorted(_points(result))
    said = []
    if found and found.mean_accepted_length and points:
        said.append(
            f"Measured: {ratio(found.overall, found.interval)} at {found.mean_accepted_length:.2f} tokens per check. "
            f"The curve has {_at(points, found.mean_accepted_length):.2f}× there."
        )
    if points:
        length, most = points[-1]
        said.append(
            f"The most accepted here, {length:.2f} tokens per check, gives {most:.2f}×. For more, drafts have to be "
            "cheaper."
        )
        said.append(_break_even(points))
    said.append("All other points are synthetic: what is accepted was drawn at random, in standard decoding's text.")
    return said


def _measured(result: SweepResult) -> Summary | None:
    """Return the summary of the drafter as it is, over all prompts; None if no prompt could be run."""
    return result.suite.of(label(result.suite.lanes[0])) if result.suite.rows else None


def _points(result: SweepResult) -> list[tuple[float, float]]:
    """Return tokens per check and speed-up of each rate."""
    summaries = [point.overall for point in result.points if point.overall]
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
    return f"Drafting begins to pay at {x + (to - x) * (1 - low) / (high - low):.2f} tokens per check."


def curve(result: SweepResult) -> go.Figure:
    """Draw speed-up over tokens per check, with the measured lane as a star."""
    figure = charts.blank("Speed-up over acceptance", "with 95 % intervals", "tokens per check", "speed-up")
    points = sorted(
        ((it.overall, it.value) for it in result.points if it.overall), key=lambda it: it[0].mean_accepted_length or 0
    )
    if not points:
        return charts.empty(figure, "No prompt was run.")
    lanes = [("synthetic", [summary for summary, _ in points], [f"rate {rate:g}" for _, rate in points], "circle")]
    if measured := _measured(result):
        lanes.append(("measured", [measured], ["measured"], "star"))
    for name, summaries, texts, symbol in lanes:
        charts.add_line(
            figure, name, COLORS[name], x=[it.mean_accepted_length for it in summaries],
            y=[it.overall for it in summaries], error_y=charts_suite.error_bars(summaries), text=texts,
            marker={"symbol": symbol, "size": 14 if symbol == "star" else 7},
            hovertemplate="%{y:.2f}× at %{x:.2f} tokens per check<extra>%{text}</extra>",
        )  # fmt: skip
    charts.add_unity(figure)
    every = [it for _, summaries, *_ in lanes for it in summaries]
    axis = charts.ratio_axis([it.overall for it in every], [it.interval for it in every])
    ends = [(name, it[-1].overall, COLORS[name]) for name, it, *_ in lanes]
    charts.label_lines(figure, ends, axis)
    sentences = [
        f"{text}: {it.overall:.2f} at {it.mean_accepted_length:.2f} tokens per check."
        for _, summaries, texts, _ in lanes
        for it, text in zip(summaries, texts, strict=True)
    ]
    figure.update_layout(meta=" ".join(["Speed-up over acceptance.", *sentences]))
    return figure.update_yaxes(title_text="speed-up, log scale", **axis)
