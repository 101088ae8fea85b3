"""The components that show things: the stage with both lanes, status lines, details, charts.

Everything that can hold other people's words (names, errors, prompts) is escaped here; model text goes through the
stage's script alone, which writes text, never markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from playground.views import charts, scripts

if find_spec("bokeh") is None:
    # Gradio tries to import it for each chart of each new session, and meanwhile answers nobody. Python remembers no
    # failed import unless it is told.
    sys.modules["bokeh"] = None  # type: ignore[assignment]


def stage(value: dict[str, Any]) -> gr.HTML:
    """Status line, both lanes and the figure between them, as one component that draws a value that is `packed`.

    One, because each component that streams costs Gradio time on both ends, and the decoding may share the machine.
    """
    return gr.HTML(
        value,
        html_template='<div class="stage"></div>',
        js_on_load=scripts.component("stage/stage.js", "stage"),
        apply_default_css=False,
        elem_id="stage",
    )


def status(sentence: str = "", kind: str = "", fraction: float | None = None) -> str:
    """One line on what is going on. `kind` is "", "error", or "busy" (a bar, sweeping where no fraction is known)."""
    if not sentence:
        return ""
    bar = ""
    if kind == "busy":
        value = "" if fraction is None else f' value="{fraction:.3f}"'
        bar = f'<progress max="1"{value} aria-label="{escape(sentence)}"></progress>'
    role = "alert" if kind == "error" else "status"
    return f'<div class="status {kind}" role="{role}"><span>{escape(sentence)}</span>{bar}</div>'


def plot(figure: go.Figure, name: str) -> PlotData:
    """A figure for gr.Plot with Plotly's settings beside it, which the figure itself cannot carry."""
    return PlotData(type="plotly", plot=json.dumps({**json.loads(figure.to_json()), "config": charts.config(name)}))


def plots(name: str, figures: Sequence[go.Figure]) -> dict[str, Any]:
    """Updates of the two plots "first" and "second"; one without a figure is hidden."""
    shown = [plot(figure, f"{name}-{i}") for i, figure in enumerate(figures, 1)]
    pair = zip(("first", "second"), [*shown, None, None], strict=False)
    return {which: gr.update(value=value, visible=value is not None) for which, value in pair}


def empty_plot() -> gr.Plot:
    return gr.Plot(show_label=False, container=False, min_width=300)


def saved(name: str, data: bytes | None) -> dict[str, Any]:
    """An update of a button that downloads the data; it cannot be pressed without any."""
    if data is None:
        return gr.update(value=None, interactive=False)
    path = save_bytes_to_cache(data, re.sub(r"[^\w.-]+", "-", name), get_upload_folder())
    return gr.update(value=path, interactive=True)
