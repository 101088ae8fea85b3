"""The last runs of a browser session, as a strip of choices: the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import gradio as gr

from playground.drafting_methods import METHODS
from playground.lane import LOCAL
from playground.ui.events import Shown
from playground.views import report

KEPT = 8


def strip() -> gr.Radio:
    return gr.Radio(
        [], label="Last runs", info="a press shows a run again, with its prompt and settings", visible=False,
        elem_id="runs",
    )  # fmt: skip


def added(runs: Sequence[Shown], shown: Shown | None) -> list[Shown]:
    """The runs with one more; the oldest goes when there are too many. A run without a result is not kept."""
    return [shown, *runs][:KEPT] if shown else [*runs]


def choices(runs: Sequence[Shown], chosen: int | None) -> dict[str, Any]:
    """An update of the strip, with the run at an index chosen."""
    named = [(_label(shown), index) for index, shown in enumerate(runs)]
    return gr.update(choices=named, value=chosen, visible=bool(runs))


def _label(shown: Shown) -> str:
    """Such as "14:32 · Draft tree · 1.87×", in the server's time."""
    comparison = shown.comparison.beside(shown.chosen)
    trace = comparison.others[0]
    at = datetime.fromisoformat(trace.environment.created).astimezone()
    method = METHODS[trace.lane.drafter].label if trace.lane.backend == LOCAL else trace.lane.name
    return f"{at:%H:%M} · {method} · {report.speedup(comparison)}"
