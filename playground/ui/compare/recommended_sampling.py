"""A line below the controls that appears if the loaded checkpoint comes with other sampling settings than those chosen,
and a button that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.models.sampling_defaults import differing
from playground.presets import Pair
from playground.settings import SAMPLING, SETTINGS
from playground.ui.compare.controls import Controls


@dataclass(frozen=True)
class SamplingRow:
    row: gr.Row
    line: gr.HTML
    button: gr.Button


def lay_out() -> SamplingRow:
    with gr.Row(visible=False, elem_id="own-settings") as row:
        line = gr.HTML()
        button = gr.Button("Use the model's settings", size="sm", min_width=180, scale=0)
    return SamplingRow(row, line, button)


def wire(
    own: SamplingRow,
    controls: Controls,
    pairs: Mapping[str, Pair],
    defaults_of: Callable[[str], dict[str, float]],
    after: Sequence[Dependency],
) -> None:
    """Checks whenever a sampling control changes, and after the events that may have loaded a model.

    Args:
        defaults_of: a target's own sampling settings; none if it is not loaded.
    """
    models = [controls["pair"], controls["target"]]
    sampling = [controls[name] for name in SAMPLING]
    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def defaults(pair: str, target: str) -> dict[str, float]:
        return defaults_of(pairs[pair].target if pair in pairs else target.strip())

    def check(pair: str, target: str, *values: float) -> tuple[Any, str]:
        differ = differing(defaults(pair, target), dict(zip(SAMPLING, values, strict=True)))
        return gr.update(visible=bool(differ)), f"<p>{escape(sentence(differ))}</p>"

    def use(pair: str, target: str) -> list[Any]:
        found = defaults(pair, target)
        return [found.get(name, gr.skip()) for name in SAMPLING]

    how: dict[str, Any] = {"fn": check, "inputs": [*models, *sampling], "outputs": [own.row, own.line], **quiet}
    gr.on([control.change for control in (*models, *sampling)], trigger_mode="always_last", **how)
    for event in after:
        event.then(**how)
    own.button.click(use, models, sampling, **quiet)


def sentence(differ: Mapping[str, float]) -> str:
    listed = ", ".join(f"{SETTINGS[name].label.lower()} {value:g}" for name, value in differ.items())
    return f"This model recommends different sampling settings: {listed}."
