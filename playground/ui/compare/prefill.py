"""Values that fill the controls, from the page's address or from a comparison, and hints from the loaded model.

Nothing runs by itself, and values from outside are checked like the endpoint's arguments. The hints are a line with the
sampling settings that the loaded checkpoint recommends, and the variables that its chat template reads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.decoding import template
from playground.errors import PlaygroundError, check
from playground.lane import LOCAL, preset_of
from playground.models.store import ModelStore
from playground.presets import OWN, Pair
from playground.settings import DRAFTING, SAMPLING, SETTINGS, differing
from playground.trace import Trace
from playground.ui.compare.controls import DEFAULTS, defaults_of, drafter_choices
from playground.ui.wiring import QUIET, UNBOUNDED, Filled, Gathered, Named, filled


def defaults(pairs: Mapping[str, Pair]) -> dict[str, Any]:
    """Returns the values that an address may leave out: those of all controls, and for each pair those that it sets."""
    return {"usual": DEFAULTS, "pairs": {name: defaults_of(pairs.get(name)) for name in (*pairs, OWN)}}


def from_address(query: Mapping[str, str], pairs: Mapping[str, Pair], at_start: Pair) -> tuple[dict[str, Any], str]:
    """Reads the controls' values from an address. Also returns a sentence on those that cannot be used ("" if there are
    none). Parameters of other names are ignored.

    Args:
        at_start: the pair that is chosen when the page loads.
    """
    values: dict[str, Any] = {}
    refused = []
    pair = pairs.get(query.get("pair", at_start.name))
    if "pair" in query and (pair or query["pair"] == OWN):
        values = {"pair": query["pair"], **defaults_of(pair)}
    if "prompt" in query:
        values["system"] = ""
    for name in (name for name in SETTINGS if name in query):
        try:
            values[name] = _read(name, query[name], pairs, pairs.get(values.get("pair", at_start.name)))
        except PlaygroundError:
            refused.append(f"{SETTINGS[name].label} ({reprlib.repr(query[name])})")
    sentence = f"Ignored in this link, as they cannot be used here: {', '.join(refused)}." if refused else ""
    return values, sentence


def from_lane(trace: Trace, pairs: Mapping[str, Pair], *, own: bool = False) -> dict[str, Any]:
    """Returns the controls' values that repeat a comparison with this lane. The models are left out where no preset has
    them, unless `own` is set, and where a server decoded the lane."""
    lane, request = trace.lane, trace.request
    values = asdict(request) | {"messages": request.history_json} | {name: getattr(lane, name) for name in DRAFTING}
    pair = preset_of(lane, pairs.values())
    if pair:
        return values | {"pair": pair.name, "drafter": lane.drafter}
    if not own or lane.backend != LOCAL:
        return values
    layers = (lane.assistant or "").removeprefix("its first ").removesuffix(" layers")
    return values | {"pair": OWN, "target": lane.target, "assistant": layers, "drafter": lane.drafter}


def updates(values: Mapping[str, Any], pairs: Mapping[str, Pair]) -> dict[str, Any]:
    """Returns updates of the controls by their names."""
    return {name: _update(name, values, pairs) for name in SETTINGS if name in values}


def _update(name: str, values: Mapping[str, Any], pairs: Mapping[str, Pair]) -> Any:
    value = values[name]
    if name == "drafter" and "pair" in values:
        return gr.update(choices=drafter_choices(pairs.get(values["pair"])), value=value)
    setting = SETTINGS[name]
    return gr.update(value=setting.clip(value) if setting.slider else value)


def _read(name: str, text: str, pairs: Mapping[str, Pair], chosen: Pair | None) -> Any:
    """Converts a parameter's text to its setting's value.

    Raises:
        PlaygroundError: the value cannot be used here.
    """
    setting = SETTINGS[name]
    value = setting.read({"true": True, "false": False}.get(text, text) if isinstance(setting.default, bool) else text)
    names = {"pair": (*pairs, OWN), "drafter": [drafter for _, drafter in drafter_choices(chosen)]}
    check(value in names.get(name, (value,)), setting.refusal(value))
    return value


def lay_out() -> dict[str, Any]:
    """Lays out the hidden line on recommended sampling settings, with a button that applies them."""
    with gr.Row(visible=False, elem_id="own-settings") as row:
        line = gr.HTML()
        button = gr.Button("Use the model's settings", size="sm", min_width=180, scale=0)
    return {"recommended": row, "recommended_line": line, "recommended_button": button}


class RecommendedSampling:
    """Compares the sampling settings with those that the loaded checkpoint recommends.

    Args:
        parts: the components by their names.
        defaults_of: returns a target's own sampling settings; none if it is not loaded.
    """

    CONTROLS = ("pair", "target", *SAMPLING)
    LINE = ("recommended", "recommended_line")

    def __init__(
        self, parts: Mapping[str, Any], pairs: Mapping[str, Pair], defaults_of: Callable[[str], dict[str, float]]
    ) -> None:
        self._parts, self._pairs, self._defaults_of = parts, pairs, defaults_of
        self.chosen = Gathered([parts[name] for name in self.CONTROLS])

    def check(self, gathered: Any) -> Named:
        """Returns updates of LINE for the values of CONTROLS, gathered by `chosen`."""
        pair, target, *values = self.chosen.read(gathered)
        differ = differing(self._defaults(str(pair), str(target)), dict(zip(SAMPLING, values, strict=True)))
        words = f"<p>{escape(sampling_sentence(differ))}</p>"
        return {"recommended": gr.update(visible=bool(differ)), "recommended_line": words}

    def wire(self, loaded: Dependency) -> None:
        """Checks the settings whenever a control changes, and after `loaded`, which may have loaded a model."""
        parts, chosen = self._parts, self.chosen

        def check(gathered: Any) -> Filled:
            return filled(parts, self.check(gathered))

        def use(pair: str, target: str) -> Filled:
            values = self._defaults(pair, target)
            return filled(parts, {name: value for name, value in values.items() if name in SAMPLING})

        line = [parts[name] for name in self.LINE]
        changes = partial(gr.on, [parts[name].change for name in self.CONTROLS])
        for event in (changes, loaded.then):
            chosen.after(event).then(check, chosen.input, line, trigger_mode="always_last", **QUIET)
        sampling = [parts[name] for name in SAMPLING]
        parts["recommended_button"].click(use, [parts["pair"], parts["target"]], sampling, **QUIET)

    def _defaults(self, pair: str, target: str) -> dict[str, float]:
        return self._defaults_of(self._pairs[pair].target if pair in self._pairs else target.strip())


def sampling_sentence(differ: Mapping[str, float]) -> str:
    """Says which settings the model recommends."""
    listed = ", ".join(f"{SETTINGS[name].label.lower()} {value:g}" for name, value in differ.items())
    return f"This model recommends different sampling settings: {listed}."


SAYS = SETTINGS["template"].help


def wire_template(parts: Mapping[str, Any], pairs: Mapping[str, Pair], store: ModelStore) -> None:
    """Reads the chat template when the drawer is opened, because the process that reads it takes seconds to start."""

    models = Gathered([parts["pair"], parts["target"]])

    def describe(gathered: Any) -> Any:
        pair, target = map(str, models.read(gathered))
        return gr.update(info=template_sentence(store, pairs[pair].target if pair in pairs else target.strip()))

    models.after(parts["more"].expand).then(describe, models.input, parts["template"], **UNBOUNDED)


def template_sentence(store: ModelStore, target: str) -> str:
    """Says which variables the target's chat template reads."""
    tokenizer = store.tokenizer(target)
    if tokenizer is None:
        return f"{SAYS}. Which it names is said here once the model is loaded"
    try:
        names = template.names(tokenizer)
    except PlaygroundError as problem:
        return f"{SAYS}. {problem}"
    if not names:
        return f"{SAYS}. This model's reads none: it has no thinking to switch"
    return f"{SAYS}. This model's reads {', '.join(names)}"
