"""The components that show things: the stage with both lanes, its legend, status lines, details, charts.

Everything that can hold other people's words (names, errors, prompts) is escaped here; model text goes through the
stage's script alone, which writes text, never markup.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from playground.views import charts, scripts
from playground.views.table import Table

ASSETS = scripts.ASSETS

if find_spec("bokeh") is None:
    # Gradio tries to import it for each chart of each new session, and meanwhile answers nobody. Python remembers no
    # failed import unless it is told.
    sys.modules["bokeh"] = None  # type: ignore[assignment]

LEGEND = """
<div class="legend">
  <ul aria-label="Legend of the token marks">
    <li><span class="tok plain">plain</span> generated without a draft</li>
    <li><span class="tok accepted">accepted</span> draft token kept</li>
    <li><span class="tok correction">correction</span> the model's replacement</li>
    <li><span class="tok bonus">bonus</span> the model's next token after a fully accepted branch</li>
    <li><span class="caret" data-count="7"></span> 7 drafted tokens not kept: click to see the draft</li>
  </ul>
  <div class="switches">
    <label><input type="checkbox" name="show-rejected"> Show rejected drafts</label>
    <label><input type="checkbox" name="show-space"> Show white space and special tokens</label>
  </div>
  <ul class="dropped" aria-label="Legend of the rejected drafts">
    <li><del class="tok rejected">rejected</del> draft token discarded</li>
    <li><del class="tok unverified">unverified</del> after a rejection, not checked</li>
  </ul>
  <p>Hover over a token, or focus it and use the arrow keys, to see its round and its probabilities; Enter opens the
  round's draft. The lanes share one device and run one after the other, so neither slows the other down.</p>
</div>
"""


def packed(value: dict[str, Any]) -> dict[str, Any]:
    """A stage's value as three strings: Gradio clones each leaf of a value in the browser at every update, and the
    decoding may share its cores. The logs stay apart, since of a string that grew only what is new is sent."""
    lanes = [{name: part for name, part in lane.items() if name != "log"} for lane in value["lanes"]]
    return {"rest": json.dumps(value | {"lanes": lanes}), "logs": [lane["log"] for lane in value["lanes"]]}


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


def legend() -> gr.HTML:
    return gr.HTML(html_template=LEGEND, js_on_load=scripts.component("legend.js", "legend"), apply_default_css=False)


def styles() -> list[Path]:
    """The style sheets, in their order."""
    return [ASSETS / "page.css", *sorted((ASSETS / "css").glob("*.css"))]


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


def details(rows: list[tuple[str, str]]) -> str:
    """The run's settings and where it ran, as a folded table."""
    if not rows:
        return ""
    cells = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>' for name, value in rows)
    return f"<details><summary>Run details</summary><dl>{cells}</dl></details>"


def memory(held: Table | None) -> str:
    """What the lanes hold in memory."""
    return f"<h2>{held.caption}</h2>{held.html()}" if held else ""


def plot(figure: go.Figure, name: str) -> PlotData:
    """A figure for gr.Plot with Plotly's settings beside it, which the figure itself cannot carry."""
    return PlotData(type="plotly", plot=json.dumps({**json.loads(figure.to_json()), "config": charts.config(name)}))


def empty_plot() -> gr.Plot:
    return gr.Plot(show_label=False, container=False, min_width=300)


def saved(name: str, data: bytes | None) -> dict[str, Any]:
    """An update of a button that downloads the data; it cannot be pressed without any."""
    if data is None:
        return gr.update(value=None, interactive=False)
    path = save_bytes_to_cache(data, re.sub(r"[^\w.-]+", "-", name), get_upload_folder())
    return gr.update(value=path, interactive=True)
