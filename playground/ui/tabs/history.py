"""History: what was run on this machine, and what runs now."""

from __future__ import annotations

from typing import Any

import gradio as gr

from playground.ui.experiments import Experiments
from playground.ui.tabs import markup

INTRO = "Every experiment of this machine, the newest first. It is kept on this machine alone."


def build(page: gr.Blocks, experiments: Experiments) -> None:
    gr.HTML(f"<h1>History</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_id="act"):
        search = gr.Textbox(label="Search", info="words of its name, kind or state", elem_id="search", scale=1)
        clear = gr.Button("Forget all that have ended", size="sm", min_width=200, scale=0)
    listed = gr.HTML(elem_id="history", apply_default_css=False)
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}

    def rows(text: str) -> str:
        return markup.history(experiments.entries(text), searched=bool(text.strip()))

    def forget(text: str) -> str:
        experiments.clear()
        return rows(text)

    search.input(rows, search, listed, trigger_mode="always_last", **private)
    clear.click(forget, search, listed, **private)
    page.load(rows, search, listed, **private)
    gr.Timer(3).tick(rows, search, listed, **private)
