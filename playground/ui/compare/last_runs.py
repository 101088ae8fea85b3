"""The last runs of a browser session, as a strip of choices: the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import gradio as gr

from playground import metrics
from playground.ui.compare.shown import Shown
from playground.views import headline

KEPT = 8
DAY_MINUTES = 24 * 60


def strip() -> gr.Radio:
    return gr.Radio(
        [], label="Last runs", info="click to reopen", visible=False,
        elem_id="runs",
    )  # fmt: skip


def added(runs: Sequence[Shown], shown: Shown | None) -> list[Shown]:
    """The runs with one more; the oldest goes when there are too many. A run without a result is not kept, and one that
    was repeated takes the place that it had."""
    if shown is None:
        return [*runs]
    if (at := index_of(runs, shown)) is not None:
        return [*runs[:at], shown, *runs[at + 1 :]]
    return [shown, *runs][:KEPT]


def index_of(runs: Sequence[Shown], shown: Shown | None) -> int | None:
    """Where a run is among them; its repeats make no other run of it."""
    return next((i for i, run in enumerate(runs) if shown and run.comparison.lanes == shown.comparison.lanes), None)


def choices(runs: Sequence[Shown], chosen: int | None, minutes: Any) -> dict[str, Any]:
    """An update of the strip, with the run at an index chosen. `minutes`: what the reader's clock is ahead of UTC, as
    the browser says; UTC where that is no clock's."""
    known = isinstance(minutes, (int, float)) and abs(minutes) < DAY_MINUTES
    zone = timezone(timedelta(minutes=minutes if known else 0))
    named = [(_label(shown, zone), index) for index, shown in enumerate(runs)]
    return gr.update(choices=named, value=chosen, visible=bool(runs))


def _label(shown: Shown, zone: timezone) -> str:
    """Such as "14:32 · Draft tree · 1.87×"."""
    measured = metrics.measured(shown.comparison, shown.chosen)
    trace = measured.ours
    at = datetime.fromisoformat(trace.environment.created).astimezone(zone)
    return f"{at:%H:%M} · {trace.lane.name} · {headline.speedup(measured)}"
