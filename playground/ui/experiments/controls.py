"""The controls for the options of a kind of experiment, and the options that their values give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from playground import validation
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import Option, options_of
from playground.experiments.work import Experiment
from playground.presets import OWN, Pair, pair_of, suites
from playground.settings import SETTINGS
from playground.ui.compare.controls import drafter_choices
from playground.ui.preload import Fits
from playground.ui.wiring import QUIET, Named, picked

OWN_FILE = "own"
FORMS = [".jsonl", ".csv", ".txt", ".yaml", ".yml"]
ADDRESSES = ("baseline_server", "server")


@dataclass(frozen=True)
class Models:
    """The pairs to choose from, and the one that is chosen at first."""

    pairs: Mapping[str, Pair]
    default: Pair
    fits: Fits


def lay_out(kind: Kind, models: Models) -> dict[str, Component]:
    """Lays the controls out and returns them by the names of the options; `pair` and, for a suite's file, `file` are
    added."""
    options = options_of(kind.options, "page")
    made: dict[str, Any] = {}
    with gr.Row(elem_classes="controls"):
        if kind.pair:
            made["pair"] = pair_menu(models)
        shown = [name for name, option in options.items() if not option.folded]
        for name in sorted(shown, key=lambda name: name == "suite"):  # its upload opens next to it
            made |= control(name, options, models)
    folded = {name: option for name, option in options.items() if option.folded}
    inside = ", ".join(_inside(option.setting.label) for option in folded.values())
    with (
        gr.Accordion(f"Advanced: {inside}", open=False, elem_id="advanced"),
        gr.Row(elem_classes="controls"),
    ):
        for name in folded:
            made |= control(name, options, models)
    follow(made, options, models)
    return made


def work_of(
    kind: Kind, pairs: Mapping[str, Pair], values: Mapping[str, Any]
) -> tuple[Experiment, str, Mapping[str, Any]]:
    """Returns the experiment that the values of these controls or of the endpoint's parameters describe, its title, and
    the values.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    every = options_of(kind.options, "page") | options_of(kind.options, "endpoint")
    given = {name: _value(every[name], value) for name, value in values.items() if name not in ("pair", "file")}
    if given.get("suite") == OWN_FILE:
        check(bool(values.get("file")), "Choose a file with your prompts, or another suite.")
        given["suite"] = str(values["file"])
    elif "suite" in given:
        check(given["suite"] in suites(), f"There is no suite {given['suite']!r}. Choose one of {', '.join(suites())}.")
    if "log" in given:
        check(
            bool(values.get("file")) or str(given["log"]).lstrip().startswith(("{", "[")),
            "Choose a file with your conversations, or give them as JSON.",
        )
        given["log"] = str(values.get("file") or given["log"])
    options: Any = validation.read(kind.options, {name: value for name, value in given.items() if value is not None})
    decoders = kind.decoders(options, lambda: pair_of(pairs, values["pair"]), bool(values.get("by_target")))
    return *kind.work(options, decoders), values


def restored(kind: Kind, pairs: Mapping[str, Pair], values: Mapping[str, Any]) -> Named:
    """Returns updates of the controls to the values with which an experiment was started, on the page or in the
    terminal. A file of the user's own has to be chosen again."""
    options, updates = options_of(kind.options, "page"), Named()
    pair = pairs.get(str(values.get("pair"))) if kind.pair else None
    if pair:
        updates["pair"] = gr.update(value=pair.name)
    for name in options.keys() & values.keys():
        option = options[name]
        value = option.default if values[name] is None else values[name]  # None: left out in the terminal
        if SPECIAL.get(name) is _drafter and pair:
            shown = _drafters_of(pair, option)
            updates[name] = gr.update(**{**shown, "value": value or shown["value"]})
        elif name == "suite" and value in suites():
            updates[name] = gr.update(value=value)
        elif name not in SPECIAL:
            listed = option.several and not option.setting.choices and not isinstance(value, str)
            updates[name] = gr.update(value=_listed(value) if listed else value)
    return updates


def carried(kind: Kind, pairs: Mapping[str, Pair], values: Mapping[str, Any]) -> Named:
    """Returns updates of the controls whose settings were chosen in another room or are named in the address. Values
    that cannot be used here are left out.

    Args:
        values: from the browser, by the settings' names. `drafters` are names separated by commas.
    """
    options, updates = options_of(kind.options, "page"), Named()
    pair, own = pairs.get(str(values.get("pair"))) if kind.pair else None, values.get("pair") == OWN
    if pair:
        updates["pair"] = gr.update(value=pair.name)
    for name, option in options.items():
        if own and option.weighted:
            updates[name] = gr.update(value=values.get("assistant"))
        elif SPECIAL.get(name) is _drafter and pair:
            shown = _drafters_of(pair, option)
            offered = [value for _, value in shown["choices"]]
            named = [each for each in str(values.get(name, "")).split(",") if each in offered]
            updates[name] = gr.update(**shown | ({"value": named if option.several else named[0]} if named else {}))
        elif name in values and name in SETTINGS and not option.several and (own or name != "target"):
            with suppress(PlaygroundError):
                updates[name] = gr.update(value=SETTINGS[name].read(values[name]))
    return updates


def _value(option: Option, value: Any) -> Any:
    """Converts a control's value for the option. An empty number box means the default; a text of numbers means
    several."""
    if isinstance(value, str) and option.several:
        try:
            return [option.of(word) for word in value.replace(",", " ").split()]
        except ValueError:
            kinds = "whole numbers" if option.of is int else "numbers"
            raise PlaygroundError(f"{value!r} are not {kinds}. Give them with commas, such as 1, 2, 4.") from None
    return value


def pair_menu(models: Models) -> gr.Dropdown:
    """Returns the choice of a pair."""
    setting = SETTINGS["pair"]
    default = models.default
    return gr.Dropdown(
        models.fits.choices(), value=default.name, label=setting.label, info=default.note or setting.help
    )


def control(name: str, options: Mapping[str, Option], models: Models) -> dict[str, Any]:
    """Returns the components of an option by their names."""
    option = options[name]
    if name in SPECIAL:
        return SPECIAL[name](option, models)
    setting, default, several = option.setting, option.default, option.several
    words: dict[str, Any] = {"label": setting.label, "info": setting.help}
    if several and setting.choices:
        return {name: gr.CheckboxGroup([(f"{it}: {does}", it) for it, does in setting.choices.items()], **words)}
    if setting.choices:
        choices = [(label.capitalize(), it) for it, label in setting.choices.items()]
        return {name: gr.Dropdown(choices, value=default, **words)}
    if option.of is bool:
        return {name: gr.Checkbox(default, **words)}
    if name in ADDRESSES:  # the servers that the page started, or any other
        return {name: gr.Dropdown([], value=default, allow_custom_value=True, elem_id=name.replace("_", "-"), **words)}
    if several:
        field, by = option.by or ("", {})
        shown = by[options[field].default] if by else default
        return {name: gr.Textbox(_listed(shown), **{**words, "info": f"{setting.help}; commas between them"})}
    if setting.slider:
        low, high, step = setting.slider
        return {name: gr.Slider(low, high, default, step=step, buttons=[], **words)}
    if option.of in (int, float):
        bounds: dict[str, Any] = {"minimum": setting.low, "maximum": setting.high}
        return {name: gr.Number(default, precision=0 if option.of is int else None, **bounds, **words)}
    return {name: gr.Textbox(default, max_lines=1, **words)}


def suite_choices() -> list[tuple[str, str]]:
    """Returns labels and names of the suites."""
    return [(f"{suite.title}, {len(suite.prompts)} prompts", name) for name, suite in suites().items()]


def _suite(option: Option, models: Models) -> dict[str, Any]:
    suite = gr.Dropdown(
        [*suite_choices(), ("Your own file …", OWN_FILE)], value=option.setting.default, label=option.setting.label,
        info="each lane answers all of them",
    )  # fmt: skip
    file = gr.File(label="A .jsonl, .csv, .txt or .yaml file", file_types=FORMS, visible=False, height=90)
    suite.change(lambda name: gr.update(visible=name == OWN_FILE), suite, file, **QUIET)
    return {"suite": suite, "file": file}


def _drafter(option: Option, models: Models) -> dict[str, Any]:
    """Returns a choice of one drafter, or of several where the option takes several."""
    info = "each is one lane, compared with standard decoding" if option.several else option.setting.help
    shown = _drafters_of(models.default, option)
    made = gr.Dropdown(
        **shown, multiselect=option.several, allow_custom_value=option.weighted, label=option.setting.label, info=info
    )
    return {"drafters" if option.several else "drafter": made}


def _drafters_of(pair: Pair, option: Option) -> dict[str, Any]:
    """Returns the drafters of a pair to choose from, and those that are chosen at first."""
    choices = drafter_choices(pair)[:-1]
    if option.several:  # those that are chosen stand beside each other
        return {"choices": [(METHODS[name].label, name) for _, name in choices], "value": list(pair.drafters)}
    if option.weighted:
        choices = [it for it in choices if it[1] in pair.weights]
        return {"choices": choices, "value": pair.drafts_by(pair.drafter) or next(iter(pair.weights), None)}
    return {"choices": choices, "value": pair.drafter}


SPECIAL: dict[str, Callable[[Option, Models], dict[str, Any]]] = {
    "suite": _suite,
    "drafters": _drafter,
    "drafter": _drafter,
}


def follow(made: Mapping[str, Any], options: Mapping[str, Option], models: Models) -> None:
    """Updates controls when another control that they depend on changes."""
    if "pair" in made:
        notes = {name: pair.note or SETTINGS["pair"].help for name, pair in models.pairs.items()}
        picked(made["pair"], lambda pair: gr.update(info=notes[pair]), made["pair"])
    for name, option in options.items():
        if SPECIAL.get(name) is _drafter:
            redrafted = partial(lambda it, pair: gr.update(**_drafters_of(models.pairs[pair], it)), option)
            picked(made["pair"], redrafted, made[name])
        if option.by:
            field, by = option.by
            picked(made[field], partial(lambda by, value: _listed(by[value]), by), made[name])


def _inside(label: str) -> str:
    """Returns a label in the form that it has within a sentence; "TTFT limit" does not change."""
    return label if label[:2].isupper() else label.lower()


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
