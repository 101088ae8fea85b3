"""A comparison as Plotly figures. Each figure is computed from the rounds alone.

Figures have dark text on white, so that a saved image can be read anywhere; on the page the style sheet gives them the
theme's colours. The baseline lane is grey everywhere. Plotly reads tags in any text, and a trace may come from
anywhere, so all names are escaped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from playground import metrics
from playground.trace import Comparison, Round, Trace

STANDARD = "#808080"
ASSISTED, DRAFTING = "#0072B2", "#D55E00"  # from Okabe and Ito's set, as the next
OTHERS = (ASSISTED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # of the lanes beside the baseline, in turn
INK = "#1f2328"
GRID = "#d0d7de"


def config(name: str) -> dict[str, Any]:
    """Plotly's settings beside a figure: one button, which saves `name`.png."""
    return {
        "displaylogo": False,
        "displayModeBar": True,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": {"filename": name, "format": "png", "scale": 2, "width": 900, "height": 480},
    }


def _colored(comparison: Comparison) -> list[tuple[Trace, str]]:
    """The baseline first, then the other lanes, each with its colour."""
    others = zip(comparison.others, itertools.cycle(OTHERS), strict=False)
    return [(comparison.standard, STANDARD), *others]


def race(comparison: Comparison) -> go.Figure:
    """Tokens over time, one step line a lane: flat during a pass, then up by the tokens it gave."""
    figure = _figure("The race", "tokens over time since the prompt was handed over", "seconds", "tokens")
    for trace, color in _colored(comparison):
        times = [0.0] + [round_.end_s for round_ in trace.rounds]
        counts = [0]
        for round_ in trace.rounds:
            counts.append(counts[-1] + len(round_.tokens))
        figure.add_scatter(
            x=times,
            y=counts,
            name=escape(trace.lane.name),
            mode="lines",
            line={"color": color, "width": 2.5, "shape": "hv"},
            hovertemplate="%{y} tokens after %{x:.2f} s",
        )
    return figure.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero").update_layout(hovermode="x")


def rounds(trace: Trace) -> go.Figure:
    """Where each round's time went: drafting and verifying, stacked."""
    figure = _figure("Time per round", "assisted lane; round 1 includes the prefill", "round", "milliseconds")
    if not trace.rounds:
        return _empty(figure, "No round was run.")
    if any(None in (round_.draft_s, round_.verify_s) for round_ in trace.rounds):
        return _empty(figure, "The server does not report the time of each round.")
    kept = [f"{len(r.accepted)} of {len(r.drafted)} draft tokens accepted" for r in trace.rounds]
    for name, seconds, color in (
        ("verifying (target)", [r.verify_s for r in trace.rounds], ASSISTED),
        ("drafting", [r.draft_s for r in trace.rounds], DRAFTING),
    ):
        figure.add_bar(
            x=list(range(1, len(trace.rounds) + 1)),
            y=[1000 * s for s in seconds],
            name=name,
            marker={"color": color, "line": {"width": 0}},
            customdata=kept,
            hovertemplate="%{y:.1f} ms " + name + "<br>%{customdata}<extra>round %{x}</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.15 if len(trace.rounds) < 60 else 0)
    return _clip_prefill(figure, trace.rounds)


def _clip_prefill(figure: go.Figure, rounds: Sequence[Round]) -> go.Figure:
    """A long prompt's first round would flatten all others: it is clipped, with a note."""
    first, *others = [1000 * (r.draft_s + r.verify_s) for r in rounds]
    if others and first > 3 * max(others):
        figure.update_yaxes(range=[0, 1.5 * max(others)])
        figure.add_annotation(
            x=1.5,  # right of its bar
            y=1,
            xref="x",
            yref="paper",
            text=f"round 1: {first:,.0f} ms",
            showarrow=False,
            xanchor="left",
            xshift=4,
        )
    return figure


def gaps(comparison: Comparison) -> go.Figure:
    """The distribution of the time between tokens."""
    lanes = [
        (trace, color, [1000 * s for s in metrics.inter_token_latencies(trace.rounds)])
        for trace, color in _colored(comparison)
    ]
    first_gaps = lanes[1][2]
    together = sum(gap == 0 for gap in first_gaps)
    subtitle = f"{together} of {len(first_gaps)} tokens arrived with the one before"
    figure = _figure("Time between tokens", subtitle, "milliseconds since the previous token", "% of tokens")
    longest = max((max(values) for _, _, values in lanes if values), default=0.0)
    if not longest:
        return _empty(figure, "Two rounds are needed for a time between them.")
    width = longest / 24
    for trace, color, values in lanes:
        figure.add_histogram(
            x=values,
            name=escape(trace.lane.name),
            xbins={"start": 0, "end": longest + width, "size": width},
            histnorm="percent",
            marker={
                "color": color,
                "pattern": {"shape": "" if color == STANDARD else "/", "size": 5, "fillmode": "overlay"},
            },
            hovertemplate="%{y:.1f} % of tokens came %{x} ms after the previous one",
        )
    return figure.update_layout(barmode="group", bargap=0.12, bargroupgap=0)


def acceptance(trace: Trace) -> go.Figure:
    """Acceptance by position in the draft, conditional and unconditional."""
    figure = _figure(
        "Acceptance by position", "draft tokens of the assisted lane", "position in the draft", "% accepted"
    )
    positions = metrics.acceptance_by_position(trace.rounds)
    if not positions:
        return _empty(figure, "Nothing was drafted.")
    for name, totals, opacity, shape, meaning in (
        ("if reached", [p.reached for p in positions], 1.0, "", "rounds that accepted every position before it"),
        ("of all drafts", [p.drafted for p in positions], 0.55, "/", "rounds that drafted this position"),
    ):
        figure.add_bar(
            x=[p.position for p in positions],
            y=[100 * p.accepted / total if total else None for p, total in zip(positions, totals, strict=True)],
            name=name,
            marker={"color": ASSISTED, "opacity": opacity, "pattern": {"shape": shape, "size": 5}},
            customdata=[[p.accepted, total] for p, total in zip(positions, totals, strict=True)],
            hovertemplate="%{y:.0f} %: accepted in %{customdata[0]} of %{customdata[1]} "
            + meaning
            + "<extra>position %{x}</extra>",
        )
    figure.update_layout(barmode="group", bargap=0.25, bargroupgap=0.06)
    return figure.update_yaxes(range=[0, 100]).update_xaxes(dtick=1 if len(positions) <= 16 else None)


def _figure(title: str, subtitle: str, x: str, y: str) -> go.Figure:
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True, "fixedrange": True}
    return go.Figure(
        layout={
            "template": "none",
            "title": {
                "text": f"<b>{title}</b><br><span style='font-size:12px'>{subtitle}</span>",
                "font": {"size": 14},
                "x": 0,
                "xref": "paper",
                "y": 0.97,
                "yanchor": "top",
            },
            "font": {"family": "ui-sans-serif, system-ui, sans-serif", "size": 12, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 320,
            "margin": {"l": 48, "r": 12, "t": 76, "b": 44},
            "showlegend": True,
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.01,
                "yanchor": "bottom",
                "bgcolor": "rgba(0,0,0,0)",
                "traceorder": "normal",
            },
            "hoverlabel": {"bgcolor": INK, "font": {"color": "white"}, "align": "left"},
            "xaxis": {**axis, "title": {"text": x, "standoff": 8, "font": {"size": 12}}, "showgrid": False},
            "yaxis": {**axis, "title": {"text": y, "standoff": 8, "font": {"size": 12}}},
        }
    )


def _empty(figure: go.Figure, sentence: str) -> go.Figure:
    figure.add_annotation(text=sentence, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 14})
    return figure.update_xaxes(visible=False).update_yaxes(visible=False)
