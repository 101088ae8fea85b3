"""Controls for the options of a kind of experiment, and the options from their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from playground import validation
from playground.errors import PlaygroundError, check
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import Decoders, Option, default_of, options_of, type_of
from playground.experiments.work import Experiment
from playground.presets import Pair, load_suites
from playground.settings import SETTINGS
from playground.ui.compare.controls import QUIET, drafter_choices
from playground.ui.fits import Fits

OWN_FILE = "own"
FORMS = [".jsonl", ".csv", ".txt", ".yaml", ".yml"]


@dataclass(frozen=True)
class Models:
    """The pairs to choose from, and the one that is chosen at first."""

    pairs: Mapping[str, Pair]
    default: Pair
    fits: Fits


def lay_out(kind: Kind, models: Models) -> dict[str, Component]:
    """The controls by the names of the options; `pair` and, for a suite's file, `file` beside them."""
    options = options_of(kind.options, "page")
    made: dict[str, Any] = {}
    with gr.Row(elem_classes="controls"):
        if kind.pair:
            made["pair"] = _pair(models)
        shown = {name: option for name, option in options.items() if not option.folded}
        for name in sorted(shown, key=lambda name: name == "suite"):  # its upload opens beside it
            made |= _control(kind, name, shown[name], models)
    folded = {name: option for name, option in options.items() if option.folded}
    inside = ", ".join(_inside(option.setting.label) for option in folded.values())
    with (
        gr.Accordion(f"Advanced: {inside}", open=False, elem_id="advanced"),
        gr.Row(elem_classes="controls"),
    ):
        for name, option in folded.items():
            made |= _control(kind, name, option, models)
    _follow(made, options, models)
    return made


def asked_for(kind: Kind, pairs: Mapping[str, Pair], values: Mapping[str, Any]) -> tuple[Experiment, str]:
    """The work that the values of these controls, or of the endpoint's parameters, ask for, and its title.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    given = {name: _value(kind, name, value) for name, value in values.items() if name not in ("pair", "file")}
    if given.get("suite") == OWN_FILE:
        check(bool(values.get("file")), "Choose a file with your prompts, or another suite.")
        given["suite"] = str(values["file"])
    elif "suite" in given:
        suites, _ = load_suites()
        check(given["suite"] in suites, f"There is no suite {given['suite']!r}. Choose one of {', '.join(suites)}.")
    if "log" in given:
        check(
            bool(values.get("file")) or str(given["log"]).lstrip().startswith(("{", "[")),
            "Choose a file with your conversations, or give them as JSON.",
        )
        given["log"] = str(values.get("file") or given["log"])
    options: Any = validation.read(kind.options, {name: value for name, value in given.items() if value is not None})
    if not kind.pair:
        return kind.work(options, None)
    check(values["pair"] in pairs, f"There is no pair {values['pair']!r}. Choose one of {', '.join(pairs)}.")
    return kind.work(options, Decoders.of(pairs[values["pair"]]))


def _value(kind: Kind, name: str, value: Any) -> Any:
    """As the options take it. An empty number box is the default; a text with numbers is several."""
    of, several = type_of(kind.options, name)
    if isinstance(value, str) and several:
        try:
            return [of(word) for word in value.replace(",", " ").split()]
        except ValueError:
            kinds = "whole numbers" if of is int else "numbers"
            raise PlaygroundError(f"{value!r} are not {kinds}. Give them with commas, such as 1, 2, 4.") from None
    return value


def _pair(models: Models) -> gr.Dropdown:
    setting = SETTINGS["pair"]
    default = models.default
    return gr.Dropdown(
        models.fits.choices(), value=default.name, label=setting.label, info=default.note or setting.help
    )


def _control(kind: Kind, name: str, option: Option, models: Models) -> dict[str, Any]:
    if name in SPECIAL:
        return SPECIAL[name](option, models)
    of, several = type_of(kind.options, name)
    setting, default = option.setting, default_of(kind.options, name)
    words: dict[str, Any] = {"label": setting.label, "info": setting.help}
    if several and setting.choices:
        return {name: gr.CheckboxGroup([(f"{it}: {does}", it) for it, does in setting.choices.items()], **words)}
    if setting.choices:
        choices = [(label.capitalize(), it) for it, label in setting.choices.items()]
        return {name: gr.Dropdown(choices, value=default, **words)}
    if several:
        field, by = option.by or ("", {})
        shown = by[default_of(kind.options, field)] if by else default
        return {name: gr.Textbox(_listed(shown), **{**words, "info": "with commas between them"})}
    if setting.slider:
        low, high, step = setting.slider
        return {name: gr.Slider(low, high, default, step=step, buttons=[], **words)}
    if of in (int, float):
        bounds: dict[str, Any] = {"minimum": setting.low, "maximum": setting.high}
        return {name: gr.Number(default, precision=0 if of is int else None, **bounds, **words)}
    return {name: gr.Textbox(default, max_lines=1, **words)}


def _suite(option: Option, models: Models) -> dict[str, Any]:
    suites, _ = load_suites()
    choices = [(f"{name.capitalize()}, {len(suite.prompts)} prompts", name) for name, suite in suites.items()]
    suite = gr.Dropdown(
        [*choices, ("Your own file …", OWN_FILE)], value=option.setting.default, label=option.setting.label,
        info="every lane answers all",
    )  # fmt: skip
    file = gr.File(label="A .jsonl, .csv, .txt or .yaml file", file_types=FORMS, visible=False, height=90)
    suite.change(lambda name: gr.update(visible=name == OWN_FILE), suite, file, **QUIET)
    return {"suite": suite, "file": file}


def _drafters(option: Option, models: Models) -> dict[str, Any]:
    return {
        "drafters": gr.Dropdown(
            drafter_choices(models.default)[:-1],
            value=list(models.default.drafters),
            multiselect=True,
            label=option.setting.label,
            info="each is one lane beside standard decoding",
        )
    }


def _drafter(option: Option, models: Models) -> dict[str, Any]:
    choices, value = drafter_choices(models.default)[:-1], models.default.drafter
    return {"drafter": gr.Dropdown(choices, value=value, label=option.setting.label, info=option.setting.help)}


def _log(option: Option, models: Models) -> dict[str, Any]:
    words: dict[str, Any] = {"label": option.setting.label, "info": option.setting.help}
    file = gr.File(label=f"{option.setting.label}: a .json or .jsonl file", file_types=[".json", ".jsonl"], height=90)
    return {"log": gr.Textbox("", visible=False, **words), "file": file}


SPECIAL: dict[str, Callable[[Option, Models], dict[str, Any]]] = {
    "suite": _suite,
    "log": _log,
    "drafters": _drafters,
    "drafter": _drafter,
}


def _follow(made: Mapping[str, Any], options: Mapping[str, Option], models: Models) -> None:
    """What one control changes in the others."""
    pairs = models.pairs
    for name, value_of in (("drafters", lambda pair: list(pair.drafters)), ("drafter", lambda pair: pair.drafter)):
        if name in made:
            made["pair"].input(
                lambda chosen, value_of=value_of: gr.update(
                    choices=drafter_choices(pairs[chosen])[:-1], value=value_of(pairs[chosen])
                ),
                made["pair"],
                made[name],
                **QUIET,
            )
    for name, option in options.items():
        if option.by:
            field, by = option.by
            made[field].input(lambda chosen, by=by: _listed(by[chosen]), made[field], made[name], **QUIET)


def _inside(label: str) -> str:
    """A label within a sentence; "TTFT limit" stays."""
    return label if label[:2].isupper() else label.lower()


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
