"""Suite: many prompts through several drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from playground.experiments.work import Suite
from playground.lane import assisted_lane
from playground.presets import Pair
from playground.results import SuiteResult
from playground.ui.experiments import prompts, tab
from playground.ui.experiments.service import Experiments
from playground.ui.fits import Fits
from playground.views import charts_suite
from playground.views import suite as view
from playground.views.table import Table

INTRO = (
    "One prompt is an anecdote. A suite runs many, through standard decoding and every drafter you choose, in a "
    "shuffled order, and says how sure the speed-up is."
)


def _tables(result: SuiteResult) -> list[Table]:
    return [view.by_category(result), view.by_prompt(result)]


KIND = tab.Kind(
    "suite",
    "Press Run. The examples on the starter take a few minutes; you can close the tab meanwhile, and find it under "
    "History.",
    view.findings,
    lambda result: [charts_suite.speedups(result)],
    _tables,
)


def build(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair], default: Pair, fits: Fits) -> None:
    gr.HTML(f"<h1>Suite</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        pair = prompts.pair_control(fits, default)
        drafters = prompts.drafters_control(pair, pairs, default)
        suite = prompts.suite_controls()
    with gr.Accordion("Advanced: how many prompts, length, temperature, repeats", open=False, elem_id="advanced"):
        repeats = prompts.repeat_controls()
    buttons = tab.buttons()
    panel = tab.panel(KIND, *buttons)
    controls = {"pair": pair, "drafters": drafters, **suite, **repeats}

    def work(*values: Any) -> tuple[Suite, str]:
        return asked_for(pairs, dict(zip(controls, values, strict=True)))

    tab.wire(page, KIND, panel, experiments, list(controls.values()), work)


def asked_for(pairs: Mapping[str, Pair], asked: Mapping[str, Any]) -> tuple[Suite, str]:
    """The suite that these values ask for, and its title.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    pair = prompts.chosen_pair(pairs, asked["pair"])
    name, questions = prompts.asked_questions(asked)
    lanes = [assisted_lane(pair, drafter) for drafter in asked["drafters"] or pair.drafters]
    work = Suite(pair, tuple(lanes), tuple(questions), int(asked["runs"]), int(asked["order_seed"] or 0))
    return work, f"{name} on {pair.title}"
