"""The results of a whole comparison as the page shows and shares them.

The Share menu copies a link or Markdown and saves a picture or one HTML file. A file is written when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from playground import export
from playground.hosting.request_filter import make_room
from playground.presets import Pair
from playground.trace import Comparison
from playground.ui import panels, rooms
from playground.ui.compare import prefill
from playground.ui.wiring import PRIVATE
from playground.views import replay_file, run_details, scripts
from playground.views.comparison import markdown

# Evaluated once for all events, which share its state.
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


def lay_out() -> gr.HTML:
    """Lays the Share menu out. Its value is the comparison as Markdown, in a list: Gradio would take a text for HTML,
    and warn of a script in a prompt. Without a comparison it is empty."""
    script = scripts.component("share.js", "share")
    return gr.HTML([], html_template=MENU, js_on_load=script, apply_default_css=False, elem_id="share", min_width=60)


def wire(menu: Any, filled: Sequence[Any], inputs: Sequence[Any], pairs: Mapping[str, Pair]) -> None:
    """Wires the menu and what follows the controls. All of it happens in the browser: only the browser may write to the
    clipboard, and only right after a press.

    Args:
        filled: events after which the controls have the values of the run that is shown.
    """
    known = json.dumps(prefill.defaults(pairs))
    acts = [(menu.copy, "copyAddress")] + [(event, "follow") for event in filled]
    acts += [(control.change, "changed") for control in inputs]
    for event, act in acts:
        event(None, [*inputs], None, js=f"(...values) => {SCRIPT}.{act}(values, {known})", **PRIVATE)


def outcome(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair]) -> dict[str, Any]:
    """Returns the run's details, the Share menu's Markdown, and an update that lets the trace be saved, by the names of
    the page's components. `chosen`: the name of the lane that is compared with the baseline."""
    return {
        "details": run_details.html(comparison, chosen),
        "menu": [markdown(comparison, pairs.values())],
        "save": gr.update(interactive=True),
    }


FORMS = ("json", "html", "gif")


def write(comparison: Comparison, chosen: str, form: str, address: str, room: int) -> dict[str, Any]:
    """Writes a comparison to a file, and returns an update of the button that downloads it.

    Args:
        chosen: the name of the lane that HTML and GIF show beside the baseline.
        form: one of FORMS: the trace, the page with the replay, or the animation.
        address: the page's address, for the animation; "" for none.
        room: how many bytes the files of all visitors may take.
    """
    lane = comparison.others[0].lane
    drafter = lane.drafter if len(comparison.others) == 1 else "all-drafters"
    name = "replay" if form == "gif" else f"trace-{lane.target[-60:]}-{drafter[:20]}"
    match form:
        case "json":
            data = json.dumps(export.to_json(comparison)).encode()
        case "html":
            data = replay_file.build(comparison, chosen, rooms.home()).encode()
        case _:
            data = replay_file.build_gif(comparison, chosen, address)
    make_room(room)
    return panels.saved(f"{name}.{form}", data)
