"""A line below the controls that appears if the loaded checkpoint recommends different sampling settings than those
chosen, and a button that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.models.sampling_defaults import differing
from playground.presets import Pair
from playground.settings import SAMPLING, SETTINGS
from playground.ui.wiring import QUIET, Filled, Gathered, filled


def lay_out() -> dict[str, Any]:
    with gr.Row(visible=False, elem_id="own-settings") as row:
        line = gr.HTML()
        button = gr.Button("Use the model's settings", size="sm", min_width=180, scale=0)
    return {"recommended": row, "recommended_line": line, "recommended_button": button}


def wire(
    parts: Mapping[str, Any],
    pairs: Mapping[str, Pair],
    defaults_of: Callable[[str], dict[str, float]],
    after: Sequence[Dependency],
) -> None:
    """Checks whenever a sampling control changes, and after the events that may have loaded a model.

    Args:
        parts: the components by their names.
        defaults_of: a target's own sampling settings; none if it is not loaded.
    """
    models = [parts["pair"], parts["target"]]
    sampling = [parts[name] for name in SAMPLING]
    chosen = Gathered([*models, *sampling])
    row, line = parts["recommended"], parts["recommended_line"]

    def defaults(pair: str, target: str) -> dict[str, float]:
        return defaults_of(pairs[pair].target if pair in pairs else target.strip())

    def check(gathered: Any) -> Filled:
        pair, target, *values = chosen.read(gathered)
        differ = differing(defaults(str(pair), str(target)), dict(zip(SAMPLING, values, strict=True)))
        return {row: gr.update(visible=bool(differ)), line: f"<p>{escape(sentence(differ))}</p>"}

    def use(pair: str, target: str) -> Filled:
        return filled(parts, {name: value for name, value in defaults(pair, target).items() if name in SAMPLING})

    changes = partial(gr.on, [control.change for control in (*models, *sampling)])
    for event in (changes, *(end.then for end in after)):
        chosen.after(event).then(check, chosen.input, [row, line], trigger_mode="always_last", **QUIET)
    parts["recommended_button"].click(use, models, sampling, **QUIET)


def sentence(differ: Mapping[str, float]) -> str:
    listed = ", ".join(f"{SETTINGS[name].label.lower()} {value:g}" for name, value in differ.items())
    return f"This model recommends different sampling settings: {listed}."
