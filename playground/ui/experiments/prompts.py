"""The controls that Suite and Sweep share: models, prompts and how often they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from playground.errors import PlaygroundError, check
from playground.experiments import questions
from playground.experiments.questions import Question
from playground.lane import Request
from playground.presets import Pair, load_suites
from playground.settings import SETTINGS
from playground.ui.compare.controls import QUIET, drafter_choices, slider
from playground.ui.fits import Fits

OWN_FILE = "own"
FORMS = [".jsonl", ".csv", ".txt", ".yaml", ".yml"]
NEW_TOKENS = 64  # fewer than for one prompt: there are many
RUNS, MOST_RUNS = 3, 10


def pair_control(fits: Fits, default: Pair) -> gr.Dropdown:
    setting = SETTINGS["pair"]
    return gr.Dropdown(fits.choices(), value=default.name, label=setting.label, info=default.note or setting.help)


def suite_controls() -> dict[str, Component]:
    """Which prompts; to be laid out in a row."""
    suites, _ = load_suites()
    choices = [(f"{name.capitalize()}, {len(suite.prompts)} prompts", name) for name, suite in suites.items()]
    suite = gr.Dropdown(
        [*choices, ("Your own file …", OWN_FILE)], value=choices[0][1], label="Prompts", info="every lane answers all"
    )
    file = gr.File(label="A .jsonl, .csv, .txt or .yaml file", file_types=FORMS, visible=False, height=90)
    suite.change(
        lambda name: gr.update(visible=name == OWN_FILE), suite, file, queue=False, show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
    return {"suite": suite, "file": file}


def drafters_control(pair: gr.Dropdown, pairs: Mapping[str, Pair], default: Pair) -> gr.Dropdown:
    """Several drafters of the chosen pair; all at first."""
    drafters = gr.Dropdown(
        drafter_choices(default)[:-1],
        value=list(default.drafters),
        multiselect=True,
        label="Drafters",
        info="each is one lane beside standard decoding",
    )
    pair.input(
        lambda name: gr.update(choices=drafter_choices(pairs[name])[:-1], value=list(pairs[name].drafters)),
        pair,
        drafters,
        **QUIET,
    )
    return drafters


def repeat_controls(*names: str) -> dict[str, Component]:
    """How much of them, and how often; to be folded. All of these controls, or those named."""
    with gr.Row(elem_classes="controls"):
        return {name: make() for name, make in REPEATS.items() if not names or name in names}


REPEATS: dict[str, Callable[[], Component]] = {
    "per_category": lambda: gr.Number(
        0, label="Prompts per category", info="at most; 0 for all", precision=0, minimum=0
    ),
    "max_new_tokens": lambda: slider("max_new_tokens", NEW_TOKENS),
    "temperature": lambda: slider("temperature"),
    "runs": lambda: gr.Slider(
        1, MOST_RUNS, RUNS, step=1, label="Runs", info="of each prompt in each lane; the median counts", buttons=[]
    ),
    "order_seed": lambda: gr.Number(0, label="Order", info="seed of the lanes' shuffled order", precision=0, minimum=0),
}


def asked_questions(asked: Mapping[str, Any], turns: int | None = None) -> tuple[str, list[Question]]:
    """What the prompts are called, and the prompts, with at most so many turns; None for all. `asked`: a suite, a file,
    or the texts themselves as `prompts`.

    Raises:
        PlaygroundError: no file was chosen, it is no suite, or a prompt is empty.
    """
    settings: dict[str, Any] = {
        "max_new_tokens": int(asked["max_new_tokens"]),
        "temperature": float(asked.get("temperature", 0)),
    }
    if own := asked.get("prompts"):
        check(all(text.strip() for text in own), "A prompt is empty. Leave it out.")
        return "own prompts", [Question("own", Request(text, **settings)) for text in own]
    source, suites = asked["suite"], load_suites()[0]
    check(source in (*suites, OWN_FILE), f"There is no suite {source!r}. Choose one of {', '.join(suites)}.")
    if source == OWN_FILE:
        check(bool(asked["file"]), "Choose a file with your prompts, or another suite.")
        source = str(asked["file"])
    per_category = int(asked["per_category"]) if asked["per_category"] else None
    return Path(source).stem, questions.questions(source, per_category, settings, turns=turns)


def chosen_pair(pairs: Mapping[str, Pair], name: str) -> Pair:
    """Raises:
    PlaygroundError: there is no such pair.
    """
    if name not in pairs:
        raise PlaygroundError(f"There is no pair {name!r}. Choose one of {', '.join(pairs)}.")
    return pairs[name]
