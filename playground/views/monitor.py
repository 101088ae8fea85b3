"""A server that serves traffic: a line for each window, advice, and charts over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import plotly.graph_objects as go

from playground.format import number, percent
from playground.metrics.serving import Window
from playground.views import charts
from playground.views.table import Table

# The field's thresholds of the acceptance rate; healthy is meant for instruction following.
HEALTHY = 0.75
LOW = 0.6
LEAST = 50  # drafted tokens that advice takes
# As wide as what stands under them, so that lines that are printed one by one are aligned.
HEAD = ("   time", "   tok/s", "running", "waiting", "accepted", "length", "by position")


def readings(windows: Iterable[Window]) -> Table:
    """A row for each window."""
    return Table("Last readings", HEAD, tuple(map(_row, windows)), numbers=len(HEAD))


def _row(window: Window) -> tuple[str, ...]:
    return (
        f"{window.end_s:.0f}s",
        number(window.tokens_per_s, 1),
        str(window.running),
        str(window.waiting),
        percent(window.acceptance_rate),
        number(window.mean_accepted_length),
        " ".join(map(number, window.accepted_at)),
    )


def advice(window: Window) -> list[str]:
    """What to do about the server, as sentences."""
    rate = window.acceptance_rate
    if rate is None:
        idle = "no request runs" if not window.running else "it has no drafter, or its drafter found nothing to propose"
        said = [f"Nothing was drafted: {idle}."]
    elif window.drafted < LEAST:
        said = [f"Only {window.drafted} tokens were drafted: too few for advice."]
    elif rate >= HEALTHY:
        said = [f"Acceptance is healthy: {rate:.0%}; {HEALTHY:.0%} or more is usual for instruction following."]
    elif rate >= LOW:
        said = [f"Acceptance is fair: {rate:.0%}. A shorter lookahead may be faster: measure it with a load test."]
    else:
        said = [
            f"Acceptance is low: {rate:.0%}, under {LOW:.0%}. Shorten the lookahead, and check that the drafter was "
            "made for this target and this kind of prompt."
        ]
    if window.waiting:
        said.append(
            f"{window.waiting} requests wait: the server is saturated. Speculation pays least there, and can slow it "
            "down: measure it with a load test."
        )
    return said


def over_time(windows: Sequence[Window]) -> tuple[go.Figure, go.Figure]:
    """Acceptance (over all drafted tokens, and by position) and throughput with the queue, over time."""
    seconds = [window.end_s for window in windows]
    accepted = charts.blank("Acceptance", "accepted ÷ drafted, and by position", "seconds", "% accepted")
    curves = [("all positions", 2.5, 1.0, tuple(window.acceptance_rate for window in windows))]
    for i, at_position in enumerate(zip_longest(*(window.accepted_at for window in windows))):
        curves.append((f"position {i + 1}", 1, max(0.25, 0.8 - 0.12 * i), at_position))
    for name, width, opacity, shares in curves:  # a window between two without drafts is a point
        y = [None if share is None else 100 * share for share in shares]
        line = {"width": width}
        charts.add_line(accepted, name, charts.ASSISTED, x=seconds, y=y, line=line, cliponaxis=False, opacity=opacity)
    traffic = charts.blank("Traffic", "output tokens and requests", "seconds", "tok/s")
    traffic.add_scatter(
        x=seconds, y=[window.tokens_per_s for window in windows], name="tok/s", line={"color": charts.ASSISTED}
    )
    for name, color in (("running", charts.STANDARD), ("waiting", charts.OTHERS[2])):
        counts = [getattr(window, name) for window in windows]
        traffic.add_scatter(x=seconds, y=counts, name=f"{name} requests", yaxis="y2", line={"color": color})
    right = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "automargin": True}
    traffic.update_layout(yaxis={"rangemode": "tozero"}, yaxis2={**right, "title": "requests"})
    if windows:
        last = windows[-1]
        rate = "nothing was drafted" if last.acceptance_rate is None else percent(last.acceptance_rate)
        accepted.update_layout(meta=f"Acceptance over time. In the last reading {rate}.")
        load = f"{last.tokens_per_s:.0f} tokens per second, {last.running} requests running, {last.waiting} waiting"
        traffic.update_layout(meta=f"Output tokens and requests over time. In the last reading {load}.")
    for figure in (accepted, traffic):  # on a phone the names take several rows
        figure.update_layout(legend={"y": -0.25, "yanchor": "top"}, height=360)
    return accepted.update_yaxes(range=[0, 100]), traffic
