"""Lossless: is the output the target's own?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from playground.errors import check
from playground.experiments.work import Lossless
from playground.lane import LOSSY_RULES, assisted_lane, lossy
from playground.presets import Pair
from playground.results import LosslessResult, SuiteResult
from playground.ui.experiments import prompts, tab
from playground.ui.experiments.service import Experiments
from playground.ui.fits import Fits
from playground.views import lossless as view
from playground.views.suite import by_prompt
from playground.views.table import Table

INTRO = (
    "Speculative decoding promises the model's own output. This checks the promise for your models: greedy outputs "
    "token for token, sampled ones by a test of their distribution."
)


def _findings(result: LosslessResult | SuiteResult) -> list[str]:
    if isinstance(result, SuiteResult):
        return [view.UNFINISHED, *view.so_far(result)]
    return [view.headline(result), view.method(result)]


def _tables(result: LosslessResult | SuiteResult) -> list[Table]:
    if isinstance(result, SuiteResult):
        return [by_prompt(result)]
    return [view.table(result), view.in_words(result)]


KIND = tab.Kind(
    "lossless",
    "Press Run. To see the check fail, add a rule that is wrong on purpose under Advanced.",
    _findings,
    lambda result: [],
    _tables,
)


def build(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair], default: Pair, fits: Fits) -> None:
    gr.HTML(f"<h1>Lossless</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        pair = prompts.pair_control(fits, default)
        drafters = prompts.drafters_control(pair, pairs, default)
        suite = prompts.suite_controls()
    with gr.Accordion("Advanced: wrong rules, draws, length", open=False, elem_id="advanced"):
        rules = gr.CheckboxGroup(
            [(f"{name}: {does}", name) for name, does in LOSSY_RULES.items()],
            label="Wrong on purpose",
            info="adds lanes that are deliberately lossy; the check should fail them",
        )
        draws = gr.Number(2048, label="Draws", info="tokens to sample with each lane", precision=0, minimum=1)
        repeats = prompts.repeat_controls("per_category", "max_new_tokens")
    buttons = tab.buttons()
    panel = tab.panel(KIND, *buttons)
    controls = {"pair": pair, "drafters": drafters, "rules": rules, "draws": draws, **suite, **repeats}

    def work(*values: Any) -> tuple[Lossless, str]:
        return asked_for(pairs, dict(zip(controls, values, strict=True)))

    tab.wire(page, KIND, panel, experiments, list(controls.values()), work)


def asked_for(pairs: Mapping[str, Pair], asked: Mapping[str, Any]) -> tuple[Lossless, str]:
    """The check that these values ask for, and its title.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    pair = prompts.chosen_pair(pairs, asked["pair"])
    name, questions = prompts.asked_questions(asked)
    lanes = [assisted_lane(pair, drafter) for drafter in asked["drafters"] or pair.drafters]
    rules = asked["rules"] or ()
    check(set(rules) <= {*LOSSY_RULES}, f"The rules that are wrong on purpose are {', '.join(LOSSY_RULES)}.")
    lanes += [lossy(lane, rule) for lane in lanes for rule in rules]
    return Lossless(pair, tuple(lanes), tuple(questions), draws=int(asked["draws"])), f"{name} on {pair.title}"
