"""The Share menu, and the page's address: copy a link or Markdown, save a picture or one HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from playground.presets import Pair
from playground.trace import Comparison
from playground.ui import rooms
from playground.ui.compare import prefill
from playground.ui.wiring import PRIVATE
from playground.views import markdown, replay_file, scripts

# Evaluated once for all events, which share what it remembers.
SCRIPT = f"(globalThis.playgroundAddress ??= {scripts.bundle('address.js')})"
MENU = """
<button type="button" class="opens" popovertarget="share-menu" aria-haspopup="true">Share</button>
<div id="share-menu" popover aria-label="Share">
  <button type="button" name="run">Copy link to this run <small>opens its replay</small></button>
  <button type="button" name="frame">Copy an &lt;iframe&gt; <small>the replay, for a page of your own</small></button>
  <button type="button" name="link">Copy link to this setup <small>models, settings and prompt</small></button>
  <button type="button" name="markdown">Copy as Markdown <small>a table, and the command</small></button>
  <button type="button" name="picture">Save picture <small>1200 × 630 pixels</small></button>
  <button type="button" name="animation">Save animation <small>the replay as a GIF</small></button>
  <button type="button" name="file">Save as HTML <small>one file with the replay, works offline</small></button>
</div>
<span class="said" role="status"></span>
"""


def lay_out() -> dict[str, Any]:
    """`menu` holds the Markdown ("" without a comparison) and presses `html` and `gif`, which download the HTML and the
    animation."""
    script = scripts.component("share.js", "share")
    menu = gr.HTML("", html_template=MENU, js_on_load=script, apply_default_css=False, elem_id="share", min_width=60)
    return {
        "menu": menu,
        "html": gr.DownloadButton("Save as HTML", elem_id="save-html"),
        "gif": gr.DownloadButton("Save animation", elem_id="save-gif"),
    }


def results(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair]) -> tuple[str, bytes]:
    """What the menu shares of a comparison: Markdown, and the HTML file, which shows the chosen lane."""
    return markdown.table(comparison, pairs.values()), replay_file.build(comparison, chosen, rooms.home()).encode()


def wire(
    menu: Any, starts: Sequence[Any], filled: Sequence[Any], asked: Sequence[Any], pairs: Mapping[str, Pair]
) -> None:
    """With every event that starts a run the address comes to ask for the same again. All of it happens in the browser,
    which alone may write to the clipboard, and only right after a press.

    Args:
        filled: events after which the controls have the values of the run that is shown.
    """
    known = json.dumps(prefill.defaults(pairs))
    acts = [(menu.copy, "copyAddress")]
    acts += [(start, "showAddress") for start in starts] + [(event, "follow") for event in filled]
    acts += [(control.change, "changed") for control in asked]
    for event, act in acts:
        event(None, [*asked], None, js=f"(...values) => {SCRIPT}.{act}(values, {known})", **PRIVATE)
