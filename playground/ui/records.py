"""The page of records, which reads them from their folder whenever it is opened, and shows the run behind one."""

from __future__ import annotations

from html import escape

import gradio as gr

from playground.errors import PlaygroundError, check
from playground.hosting.access import Access
from playground.results import record
from playground.results.record import Record
from playground.ui import panels
from playground.ui.rooms import RECORDS_PAGE
from playground.ui.wiring import PRIVATE
from playground.views import records, report, scripts


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

    def read(request: gr.Request) -> str:
        try:
            found, run = record.load(), request.query_params.get("run")
            return records.html(found, [name for name, it in found.items() if it.here]) if not run else _run(found, run)
        except PlaygroundError as problem:
            return panels.status(access.told(str(problem)), "error")

    page.load(read, None, shown, **PRIVATE)


def _run(found: dict[str, Record], name: str) -> str:
    """Returns the run behind a record as HTML.

    Raises:
        PlaygroundError: there is no such record, or its run is not here.
    """
    check(name in found, f"There is no record {name}.")
    result = record.run_of(found[name])
    if result is None:
        raise PlaygroundError(f"The run behind {name} is not here.")
    it = report.of(result)
    head = f'<p><a href="{RECORDS_PAGE}">All records</a></p><h2>{escape(it.title)}</h2><p>{escape(it.setting)}</p>'
    return f'{head}{panels.findings(it.findings)}<div id="tables">{panels.tables([*it.tables, *it.folded])}</div>'
