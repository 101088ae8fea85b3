"""The settings of a comparison in one table: bounds, defaults, and the words that explain them.

`Lane`, `Request` and `Pair` check their values against it; page, terminal and endpoint build their controls from it.
Knows neither models nor pages.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from playground.errors import check


class Slider(NamedTuple):
    """The range of a slider on the page, which may be narrower than what the setting accepts."""

    low: float
    high: float
    step: float


@dataclass(frozen=True)
class Setting:
    """One setting.

    `help` is one line without a full stop. `low` and `high` bound a number and are both accepted; with `zero`, 0 is
    accepted as well. `choices` maps each accepted name to its label.
    """

    label: str
    help: str
    default: Any
    low: float = 0
    high: float = 0
    slider: Slider | None = None
    zero: bool = False
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def range(self) -> str:
        """The accepted numbers or choices, such as "1 to 64"; "" for text and switches."""
        if self.choices:
            return ", ".join(self.choices)
        if isinstance(self.default, (str, bool)):
            return ""
        powers: dict[float, str] = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1"}
        high = powers.get(self.high, f"{self.high:,}")
        return f"{'0 or ' if self.zero else ''}{self.low} to {high}"

    @property
    def allowed(self) -> str:
        """The accepted values in words, such as "a whole number from 1 to 64"."""
        if self.choices:
            return f"one of {self.range}"
        kind = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}[type(self.default)]
        return f"{kind}: {self.range}" if self.zero else f"{kind} from {self.range}" if self.range else kind

    def accepts(self, value: Any) -> bool:
        """Whether a value of the right type is within the bounds, or among the choices."""
        if self.choices:
            return value in self.choices
        if isinstance(self.default, (str, bool)):
            return True
        return (self.zero and value == 0) or self.low <= value <= self.high

    def clip(self, value: float) -> float:
        """The nearest number that is accepted and on the slider."""
        assert self.slider, "a setting with a slider"
        if self.zero and value == 0:
            return value
        return min(max(value, self.low, self.slider.low), self.high, self.slider.high)

    def refusal(self, value: object) -> str:
        """The sentence for a value that is not accepted."""
        given = "empty" if value is None else reprlib.repr(value)
        return f"{self.label} must be {self.allowed}; it is {given}."


SETTINGS: dict[str, Setting] = {
    "prompt": Setting("Prompt", "sent to both lanes", ""),
    "pair": Setting("Models", "the model, and what can draft for it", "starter"),
    "target": Setting("Target model", "Hugging Face id or local folder", ""),
    "assistant": Setting(
        "Drafter model", "Hugging Face id or local folder; for early exit, the number of layers to draft with", ""
    ),
    "drafter": Setting("Drafter", "how tokens are drafted", ""),
    "lookahead": Setting("Lookahead", "tokens drafted per round", 5, 1, 64, Slider(1, 64, 1)),
    "policy": Setting(
        "Lookahead policy",
        "how many tokens to draft next",
        "constant",
        choices={
            "constant": "Fixed",
            "heuristic": "Heuristic (+2 / −1)",
            "confidence": "Confidence threshold",
            "cost": "Cost-based (measured)",
        },
    ),
    "confidence_threshold": Setting(
        "Confidence threshold",
        "stop drafting when the drafter's confidence falls below this",
        0.4,
        0,
        1,
        Slider(0, 1, 0.05),
    ),
    "nodes": Setting("Tree size", "maximum number of tokens in a draft tree", 16, 1, 256, Slider(1, 256, 1)),
    "keep_free_gb": Setting(
        "Reserve memory (GB)",
        "shorten drafts to leave this much device memory free; 0 = no limit",
        0.0,
        0,
        10**9,
    ),
    "compiled": Setting(
        "Compiled",
        "run both lanes as CUDA graphs over a static cache; auto = on a CUDA GPU",
        "auto",
        choices={"auto": "Auto", "on": "On", "off": "Off"},
    ),
    "max_new_tokens": Setting("Max new tokens", "maximum answer length", 128, 1, 2**31 - 1, Slider(8, 2048, 8)),
    "temperature": Setting(
        "Temperature", "0 = greedy; higher = more random", 0.0, 0.01, 10, Slider(0, 2, 0.01), zero=True
    ),
    "top_p": Setting(
        "Top-p", "keep the most likely tokens up to this total probability", 1.0, 0.001, 1, Slider(0.05, 1, 0.01)
    ),
    "top_k": Setting("Top-k", "keep the k most likely tokens; 0 = all", 0, 0, 2**31 - 1, Slider(0, 200, 1)),
    "repetition_penalty": Setting(
        "Repetition penalty", "1 = none; applies to greedy decoding too", 1.0, 0.01, 10, Slider(1, 2, 0.01)
    ),
    "seed": Setting(
        "Seed",
        "the same seed draws the same samples, unless a drafter that samples has a cost-based lookahead or reserved "
        "memory, which timing or other programs change",
        0,
        0,
        2**63 - 1,
    ),
    "system": Setting("System prompt", "optional; passed to the chat template", ""),
    "chat_template": Setting(
        "Chat template", "wrap the prompt in the model's chat format; off = continue the raw text", True
    ),
}
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")  # what a checkpoint may have defaults for
POLICIES = tuple(SETTINGS["policy"].choices)
PRESET = ("lookahead", "policy", "confidence_threshold", "nodes")  # a preset has values of its own for these


def default(name: str) -> Any:
    """The default of a setting."""
    return SETTINGS[name].default


def flag(name: str) -> str:
    """The option of a setting in the terminal."""
    return f"--{name.removesuffix('_gb').replace('_', '-')}"


def check_fields(values: Any) -> None:
    """Checks those fields of a dataclass that are settings.

    Raises:
        PlaygroundError: the first one that is not accepted, in words.
    """
    for name in (item.name for item in fields(values) if item.name in SETTINGS):
        setting, value = SETTINGS[name], getattr(values, name)
        check(setting.accepts(value), setting.refusal(value))
