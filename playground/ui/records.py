"""The page of records, which reads them from their folder whenever it is opened."""

from __future__ import annotations

from html import escape

import gradio as gr

from playground.errors import PlaygroundError
from playground.hosting.access import Access
from playground.results import record
from playground.ui import panels
from playground.ui.wiring import PRIVATE
from playground.views import records, scripts


def build(page: gr.Blocks, access: Access) -> None:
    """Lays the page out."""
    gr.HTML(f"<h1>Records</h1><p>{escape(records.INTRO)}</p>", elem_classes="intro")
    shown = gr.HTML(
        "",
        html_template="<div></div>",
        js_on_load=scripts.component("records.js", "room"),
        apply_default_css=False,
        elem_id="records",
    )

    def read() -> str:
        try:
            return records.html(record.load())
        except PlaygroundError as problem:
            return panels.status(access.told(str(problem)), "error")

    page.load(read, None, shown, **PRIVATE)
