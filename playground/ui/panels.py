"""What the page shows of a run: token panels, figures, the large figure, status lines, charts.

Everything that can hold other people's words (names, errors, prompts) is escaped here; model text goes through the
token panels' script alone, which writes text, never markup.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData

from playground.views import charts
from playground.views.report import Figure

ASSETS = Path(__file__).resolve().parents[2] / "assets"
NO_FIGURE = "–"

LEGEND = """
<div class="legend">
  <ul aria-label="Legend of the token marks">
    <li><span class="tok plain">plain</span> the target's own</li>
    <li><span class="tok accepted">accepted</span> draft token kept</li>
    <li><span class="tok rejected">rejected</span> draft token dropped</li>
    <li><span class="tok unused">unused</span> dropped behind it, never judged</li>
    <li><span class="tok correction">correction</span> the target's, in its place</li>
    <li><span class="tok bonus">bonus</span> after a fully accepted draft</li>
  </ul>
  <div class="switches">
    <label><input type="checkbox" name="hide-rejected"> Hide rejected tokens</label>
    <label><input type="checkbox" name="show-space"> Show white space and special tokens</label>
  </div>
  <p>Hover a token, or focus it and use the arrow keys, to see its round, its probabilities and what became of it.
  The lanes share one device: they run one after the other, so that neither slows the other.</p>
</div>
"""


@dataclass(frozen=True)
class LanePanel:
    head: gr.HTML
    log: gr.HTML


def lane_panel(name: str) -> LanePanel:
    """One lane's figures over its tokens. `log` takes the text that `views.tokens` makes."""
    with gr.Column(min_width=300, elem_classes="lane", scale=10):
        head_ = gr.HTML(head(name))
        log = gr.HTML(
            "",
            html_template=f'<div class="tokens" role="log" aria-live="off" aria-label="{escape(name)}, output"></div>',
            js_on_load=(ASSETS / "tokens.js").read_text(encoding="utf-8"),
            apply_default_css=False,
        )
    return LanePanel(head_, log)


def legend() -> gr.HTML:
    script = (ASSETS / "legend.js").read_text(encoding="utf-8")
    return gr.HTML(html_template=LEGEND, js_on_load=script, apply_default_css=False)


def head(name: str, state: str = "", figures: list[Figure] | None = None) -> str:
    """A lane's name, its state (waiting, running, done, stopped) and its line of figures."""
    cells = "".join(
        f'<div title="{escape(f.meaning)}"><dt>{escape(f.label)}</dt>'
        f"<dd>{escape(f.value)}<small>{escape(f.unit)}</small></dd></div>"
        for f in figures or []
    )
    chip = f'<span class="chip {escape(state)}">{escape(state)}</span>' if state else ""
    return f'<div class="lane-head"><h2>{escape(name)}{chip}</h2><dl class="figures">{cells}</dl></div>'


def verdict(figure: str = NO_FIGURE, meaning: str = "speed-up: assisted ÷ standard", sentences: tuple = ()) -> str:
    """The large figure between the panels, what it compares, and what else can be said of both lanes."""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<output class="figure">{escape(figure)}</output><p class="meaning">{escape(meaning)}</p>{said}'


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
    """What was asked and where it ran, as a folded table."""
    if not rows:
        return ""
    cells = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>' for name, value in rows)
    return f"<details><summary>What was asked, and where it ran</summary><dl>{cells}</dl></details>"


def plot(figure: go.Figure, name: str) -> PlotData:
    """A figure for gr.Plot with Plotly's settings beside it, which the figure itself cannot carry."""
    return PlotData(type="plotly", plot=json.dumps({**_plain(figure), "config": charts.config(name)}))


def _plain(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json())
