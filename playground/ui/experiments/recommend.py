"""Recommend: which drafter, and how deep, or none?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from playground.experiments.recommend import candidates
from playground.experiments.work import Recommend
from playground.lane import LOCAL
from playground.presets import Pair
from playground.results import Recommendation, SuiteResult
from playground.ui import deploy, markup
from playground.ui.experiments import prompts, tab
from playground.ui.experiments.service import Experiments
from playground.ui.fits import Fits
from playground.views import charts_suite, suite
from playground.views import recommend as view
from playground.views.table import Table

INTRO = (
    "Which drafter should you use for your prompts on this machine, how deep, or none? All drafters are screened, the "
    "fastest are tried at several lookaheads, and what is chosen runs again. It ends in settings to paste."
)


def _findings(result: Recommendation | SuiteResult) -> list[str]:
    if isinstance(result, SuiteResult):
        return [view.UNFINISHED, *suite.findings(result)]
    return [view.headline(result), *view.reasons(result)]


def _charts(result: Recommendation | SuiteResult) -> list[go.Figure]:
    if isinstance(result, SuiteResult):
        return [charts_suite.speedups(result)]
    return [charts_suite.refined(result), charts_suite.speedups(result.confirmed, "Confirming")]


def _tables(result: Recommendation | SuiteResult) -> list[Table]:
    if isinstance(result, SuiteResult):
        return [suite.by_category(result), suite.by_prompt(result)]
    return [view.table(result), *view.stages(result)]


def _settings(result: Recommendation | SuiteResult) -> str:
    if isinstance(result, SuiteResult) or result.lane is None or result.lane.backend != LOCAL:
        return ""
    return markup.folded("Settings to deploy", deploy.blocks(view.settings(result)))


KIND = tab.Kind(
    "recommend",
    "Press Run. The examples on the starter take up to ten minutes; you can close the tab meanwhile, and find it under "
    "History.",
    _findings,
    _charts,
    _tables,
    _settings,
)


def build(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair], default: Pair, fits: Fits) -> None:
    gr.HTML(f"<h1>Recommend</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        pair = prompts.pair_control(fits, default)
        drafters = prompts.drafters_control(pair, pairs, default)
        suite = prompts.suite_controls()
    with gr.Accordion("Advanced: how many prompts, length, temperature, order", open=False, elem_id="advanced"):
        repeats = prompts.repeat_controls("per_category", "max_new_tokens", "temperature", "order_seed")
    buttons = tab.buttons()
    panel = tab.panel(KIND, *buttons)
    controls = {"pair": pair, "drafters": drafters, **suite, **repeats}

    def work(*values: Any) -> tuple[Recommend, str]:
        return asked_for(pairs, dict(zip(controls, values, strict=True)))

    tab.wire(page, KIND, panel, experiments, list(controls.values()), work)


def asked_for(pairs: Mapping[str, Pair], asked: Mapping[str, Any]) -> tuple[Recommend, str]:
    """The recommendation that these values ask for, and its title.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    pair = prompts.chosen_pair(pairs, asked["pair"])
    name, questions = prompts.asked_questions(asked, turns=1)
    lanes = candidates(pair, asked["drafters"])
    return Recommend(pair, tuple(lanes), tuple(questions), int(asked["order_seed"] or 0)), f"{name} on {pair.title}"
