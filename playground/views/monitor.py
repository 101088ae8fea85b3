"""A server under real traffic: a table row for each window, advice, and charts over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from playground.format import number, percent
from playground.metrics.load import Window
from playground.views import charts
from playground.views.table import Table

# The field's thresholds of the acceptance rate; healthy is meant for instruction following.
HEALTHY = 0.75
LOW = 0.6
LEAST = 50  # drafted tokens needed for advice
SHOWN = 8  # positions that the chart has room to label; the table has all
# Each is as wide as its cells, so that lines that are printed one by one are aligned.
HEAD = ("   time", "   tok/s", "running", "waiting", "accepted", "length", "by position")


def readings(windows: Iterable[Window]) -> Table:
    """Return a table with a row for each window."""
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


def advice(windows: Sequence[Window]) -> list[str]:
    """Return advice as sentences: on drafting, from the last window in which something was drafted, and on the queue at
    the end."""
    last = windows[-1]
    window = next((it for it in reversed(windows) if it.drafted), last)
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
    if window is not last:
        said.append(f"Nothing was drafted after {window.end_s:.0f} s.")
    if last.waiting:
        said.append(
            f"{last.waiting} requests wait: the server is saturated. Speculation pays least there, and can slow it "
            "down: measure it with a load test."
        )
    return said


def over_time(windows: Sequence[Window]) -> tuple[go.Figure, go.Figure]:
    """Draw acceptance (over all drafted tokens, and by position), and throughput with the queue, over time."""
    return _acceptance(windows), _traffic(windows)


def _acceptance(windows: Sequence[Window]) -> go.Figure:
    by_position = [*zip_longest(*(window.accepted_at for window in windows))]
    beyond = f", to the {SHOWN}th of {len(by_position)}" if len(by_position) > SHOWN else ""
    figure = charts.blank("Acceptance", f"accepted ÷ drafted; grey: by position{beyond}", "seconds", "% accepted")
    curves = [("all", charts.ASSISTED, 2.5, tuple(window.acceptance_rate for window in windows))]
    for i, at_position in enumerate(by_position[:SHOWN], 1):
        curves.append((f"position {i}" if i == 1 else str(i), charts.STANDARD, 1.0, at_position))
    ends = []
    for name, color, width, shares in curves:  # a window between two without drafts is a point
        y = [None if share is None else 100 * share for share in shares]
        charts.add_line(
            figure, name, color, x=[window.end_s for window in windows], y=y, line={"width": width}, cliponaxis=False
        )
        known = [value for value in y if value is not None]
        ends += [(name, value, color) for value in known[-1:]]
    axis = {"type": "linear", "range": (0, 100)}
    charts.label_lines(figure, ends, axis)
    if windows:
        rate = windows[-1].acceptance_rate
        said = "nothing was drafted" if rate is None else percent(rate)
        figure.update_layout(meta=f"Acceptance over time. In the last reading {said}.")
    return figure.update_yaxes(**axis)


def _traffic(windows: Sequence[Window]) -> go.Figure:
    seconds = [window.end_s for window in windows]
    figure = charts.blank("Traffic", "output tokens; below: requests", "", "")
    make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1, figure=figure)
    speeds = [window.tokens_per_s for window in windows]
    charts.add_line(figure, "tok/s", charts.ASSISTED, x=seconds, y=speeds, row=1, col=1)
    ends = []
    for name, color in (("running", charts.STANDARD), ("waiting", charts.OTHERS[2])):
        counts = [getattr(window, name) for window in windows]
        charts.add_line(figure, name, color, x=seconds, y=counts, row=2, col=1)
        ends += [(name, count, color) for count in counts[-1:]]
    requests = charts.count_axis([max(window.running, window.waiting) for window in windows])
    charts.label_lines(figure, ends, requests, charts.HEIGHT * 0.45, row=2, col=1)
    if windows:
        last = windows[-1]
        load = f"{last.tokens_per_s:.0f} tokens per second, {last.running} requests running, {last.waiting} waiting"
        figure.update_layout(meta=f"Output tokens and requests over time. In the last reading {load}.")
    charts.style_axes(figure)
    figure.update_yaxes(title_text="tok/s", **charts.count_axis(speeds), row=1, col=1)
    figure.update_yaxes(title_text="requests", **requests, row=2, col=1)
    return figure.update_xaxes(title_text="seconds", row=2, col=1)
