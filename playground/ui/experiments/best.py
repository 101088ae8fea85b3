"""The page Best drafter: one question, *which prompts?*, and how sure the answer has to be.

The answer comes from the kinds of experiments that share this page: a suite, a recommendation, or a log's traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from playground.errors import check
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import options_of
from playground.experiments.work import Experiment
from playground.presets import suites
from playground.ui.experiments import controls, tab
from playground.ui.experiments.controls import FORMS, OWN_FILE, Models
from playground.ui.experiments.service import Experiments
from playground.ui.rooms import BEST_PAGE
from playground.ui.wiring import QUIET, Named

QUESTION = "Which drafter is the fastest for your prompts, or is none?"
INTRO = "Every drafter answers them here, beside standard decoding. It ends in a verdict, a chart and a command."
HINT = "Press Run. You can close the tab meanwhile, and find it under History."
PROMPTS = {"this": "This one", "examples": "Examples", "logs": "My logs", "file": "A file"}
SOURCES = {"this": "prompt", "examples": "suite", "logs": "log", "file": "file"}  # the control of each
DEPTHS = {
    "quick": "Quick: every drafter, at its usual lookahead",
    "sure": "Sure: the fastest again at several lookaheads, and fresh runs of the one that is chosen",
}
ADVANCED = ("drafters", "max_new_tokens", "temperature", "per_category")
RUNS, RUNS_OF_ONE = 2, 5  # of each prompt, so that a quick answer has intervals: of a few, and of a single one
TURNS = 32  # of a log that a quick answer decodes
SHOW = f"""(chosen) => {[*SOURCES]}.map((name) => ({{ __type__: "update", visible: name === chosen }}))"""


def build(page: gr.Blocks, experiments: Experiments, models: Models) -> None:
    """Lays the page out and wires it."""
    gr.HTML(f"<h1>{QUESTION}</h1><p>{INTRO}</p>", elem_classes="intro")
    made = _lay_out(models)

    def begin_with(settings: Mapping[str, Any], earlier: Mapping[str, Any]) -> Named:
        found = _restored(models, earlier) if earlier else _carried(models, settings)
        return {name: update for name, update in found.items() if name in made}

    def work(values: Mapping[str, Any]) -> tuple[Experiment, str, Mapping[str, Any]]:
        kind, options = chosen_kind(values)
        return controls.work_of(kind, models.pairs, options)

    kinds = [kind.name for kind in KINDS.values() if kind.shared == BEST_PAGE]
    tab.wire(page, experiments, made, kinds, begin_with, work, HINT)


def chosen_kind(values: Mapping[str, Any]) -> tuple[Kind, dict[str, Any]]:
    """Returns the kind of experiment that answers these values of the controls, and the values of its options.

    Raises:
        PlaygroundError: the prompt is empty.
    """
    options = {name: values[name] for name in ("pair", *ADVANCED)}
    prompts, sure = values["prompts"], values["depth"] == "sure"
    if prompts == "logs":
        del options["per_category"]
        return KINDS["traffic"], {**options, "log": "", "file": values["log"], "sample": 0 if sure else TURNS}
    match prompts:
        case "this":
            check(bool(values["prompt"].strip()), "Type a prompt, or choose other prompts.")
            options["prompts"] = [values["prompt"]]
        case "file":
            options |= {"suite": OWN_FILE, "file": values["file"]}
        case _:
            options["suite"] = values["suite"]
    if sure:
        return KINDS["recommend"], options
    return KINDS["suite"], {**options, "runs": RUNS_OF_ONE if prompts == "this" else RUNS}


def _lay_out(models: Models) -> dict[str, Component]:
    options = options_of(KINDS["suite"].options, "page")
    made: dict[str, Any] = {}
    with gr.Row(elem_id="best", elem_classes="controls"):
        made["prompts"] = gr.Radio(
            [(label, name) for name, label in PROMPTS.items()], value="examples", label="Which prompts?",
            elem_id="which-prompts",
        )  # fmt: skip
        with gr.Column(elem_id="source"):
            made["prompt"] = gr.Textbox("", label="Prompt", lines=2, max_lines=6, visible=False)
            made["suite"] = gr.Dropdown(
                controls.suite_choices(), value="examples", label="Examples", info="every drafter answers all of them"
            )
            made["log"] = gr.File(
                label="Conversations: .json or .jsonl", file_types=[".json", ".jsonl"], visible=False, height=132
            )
            made["file"] = gr.File(label="Prompts: .jsonl, .csv …", file_types=FORMS, visible=False, height=132)
        made["pair"] = controls.pair_menu(models)
        made["depth"] = gr.Radio(
            [(label, name) for name, label in DEPTHS.items()], value="quick", label="How sure?", elem_id="depth"
        )
    with (
        gr.Accordion("Advanced: drafters, length, temperature", open=False, elem_id="advanced"),
        gr.Row(elem_classes="controls"),
    ):
        for name in ADVANCED:
            made |= controls.control(name, options, models)
    controls.follow(made, options, models)
    shown = [made[source] for source in SOURCES.values()]
    made["prompts"].change(None, made["prompts"], shown, js=SHOW, **QUIET)
    return made


def _carried(models: Models, settings: Mapping[str, Any]) -> Named:
    """Returns updates from the settings of other rooms and the address."""
    found = controls.carried(KINDS["suite"], models.pairs, settings)
    for name, choices in (("prompts", PROMPTS), ("depth", DEPTHS)):
        found |= {name: gr.update(value=settings[name])} if settings.get(name) in choices else {}
    return found | ({"prompt": gr.update(value=str(settings["prompt"]))} if settings.get("prompt") else {})


def _restored(models: Models, values: Mapping[str, Any]) -> Named:
    """Returns updates to the values that started an experiment here, or in the terminal. A file has to be chosen
    again."""
    logs = "log" in values
    kind = "traffic" if logs else "suite" if "runs" in values else "recommend"
    given = values.get("prompts") or ()
    prompts = "logs" if logs else "this" if given else "examples" if values.get("suite") in suites() else "file"
    sure = not values.get("sample") if logs else kind == "recommend"
    found = {name: it for name, it in controls.restored(KINDS[kind], models.pairs, values).items() if name != "log"}
    found |= {"prompts": gr.update(value=prompts), "depth": gr.update(value="sure" if sure else "quick")}
    return found | ({"prompt": gr.update(value=given[0])} if given else {})
