"""Sweep: one setting of a drafter over several values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from playground.errors import PlaygroundError
from playground.experiments import sweep
from playground.experiments.work import Sweep
from playground.lane import assisted_lane
from playground.presets import Pair
from playground.results import SweepResult
from playground.ui.compare.controls import drafter_choices
from playground.ui.experiments import prompts, tab
from playground.ui.experiments.service import Experiments
from playground.ui.fits import Fits
from playground.views import charts_suite
from playground.views import sweep as view
from playground.views.suite import by_prompt as rows_by_prompt
from playground.views.table import Table

INTRO = "How many tokens should be drafted at a time? A sweep tries every value on the same prompts and marks the best."


def _tables(result: SweepResult) -> list[Table]:
    tables = [view.by_value(result), view.by_category(result), view.by_position(result), rows_by_prompt(result.suite)]
    return [table for table in tables if len(table.columns) > 1]


KIND = tab.Kind(
    "sweep",
    "Press Run. Lookahead 0 is no drafter, so that drafting has to earn its place.",
    view.findings,
    lambda result: [charts_suite.sweep(result), charts_suite.by_category(result)],
    _tables,
)


def build(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair], default: Pair, fits: Fits) -> None:
    gr.HTML(f"<h1>Sweep</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        pair = prompts.pair_control(fits, default)
        drafter = gr.Dropdown(drafter_choices(default)[:-1], value=default.drafter, label="Drafter", info="what drafts")
        axis = gr.Dropdown(
            [(name.capitalize(), axis) for axis, name in view.NAMES.items()], value="lookahead", label="Setting",
            info="which takes several values",
        )  # fmt: skip
        values = gr.Textbox(_listed("lookahead"), label="Values", info="with commas between them")
        suite = prompts.suite_controls()
    with gr.Accordion("Advanced: how many prompts, length, temperature, repeats", open=False, elem_id="advanced"):
        repeats = prompts.repeat_controls()
    buttons = tab.buttons()
    panel = tab.panel(KIND, *buttons)
    controls = {"pair": pair, "drafter": drafter, "axis": axis, "values": values, **suite, **repeats}

    def work(*given: Any) -> tuple[Sweep, str]:
        asked = dict(zip(controls, given, strict=True))
        return asked_for(pairs, {**asked, "values": read(asked["values"])})

    tab.wire(page, KIND, panel, experiments, list(controls.values()), work)
    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    pair.input(
        lambda name: gr.update(choices=drafter_choices(pairs[name])[:-1], value=pairs[name].drafter),
        pair, drafter, **quiet,
    )  # fmt: skip
    axis.input(_listed, axis, values, **quiet)


def asked_for(pairs: Mapping[str, Pair], asked: Mapping[str, Any]) -> tuple[Sweep, str]:
    """The sweep that these values ask for, and its title. `values`: None for some over the setting's range.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    pair, axis = prompts.chosen_pair(pairs, asked["pair"]), asked["axis"]
    name, questions = prompts.asked_questions(asked)
    lane = assisted_lane(pair, asked["drafter"])
    if axis == "lookahead":  # under another policy it is a bound, not the length of the drafts
        lane = replace(lane, policy="constant")
    values = tuple(sweep.DEFAULTS[axis] if asked["values"] is None else asked["values"])
    sweep.lanes_of(lane, axis, values)  # raises here and not in the middle
    work = Sweep(pair, lane, axis, values, tuple(questions), int(asked["runs"]), int(asked["order_seed"] or 0))
    return work, f"{view.NAMES[axis].capitalize()} of {lane.drafter} on {pair.title}, {name}"


def _listed(axis: Any) -> str:
    return ", ".join(f"{value:g}" for value in sweep.DEFAULTS[axis])


def read(text: str) -> tuple[float, ...]:
    """Raises:
    PlaygroundError: they are not numbers.
    """
    try:
        return tuple(float(value) for value in text.replace(",", " ").split())
    except ValueError:
        raise PlaygroundError(f"{text!r} are not numbers. Give them with commas, such as 0, 2, 4.") from None
