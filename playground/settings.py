"""The settings of a comparison, once: bounds, default and help text of each are metadata of its field.

`Request`, `Lane` and `Pair` inherit the fields. Page, terminal, endpoint, servers' requests and views are made from
them.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter, ValidationError

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
    `sweep`: the default values of a sweep; () if it is not swept. `file`: whether it is a longer text, for which the
    page has an area and the terminal reads a file. `line`: the form of a line, such as "KEY=VALUE", in a text that is a
    list of lines, for which the terminal's option may come several times; "" for others.

    Of a sampling setting, for which a checkpoint may have a default, `neutral` is the value that changes nothing, `off`
    its text in a run's details then ("" for nothing; None for the value), and `greedy` whether it applies to greedy
    decoding too.
    """

    label: str
    help: str
    default: Any
    low: float = 0
    high: float = 0
    slider: Slider | None = None
    zero: bool = False
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sweep: tuple[float, ...] = ()
    file: bool = False
    line: str = ""
    neutral: float | None = None
    off: str | None = None
    greedy: bool = False

    @property
    def text(self) -> bool:
        """True where the setting is free text."""
        return isinstance(self.default, str) and not self.choices

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

    def read(self, value: object) -> Any:
        """Return the value in the setting's type: numbers may come as text, whole ones with a decimal point.

        Raises:
            PlaygroundError: it is not accepted; `refusal` is the sentence.
        """
        kind = type(self.default)
        try:
            value = TypeAdapter(kind).validate_python(value, strict=kind is bool)
        except ValidationError:
            check(False, self.refusal(value))
        check(self.accepts(value), self.refusal(value))
        return value

    def accepts(self, value: Any) -> bool:
        """Return True if a value of the right type is within the bounds, or among the choices."""
        if self.choices:
            return value in self.choices
        if isinstance(self.default, (str, bool)):
            return True
        return (self.zero and value == 0) or self.low <= value <= self.high

    def clip(self, value: float) -> float:
        """Return the nearest number that is accepted and on the slider."""
        assert self.slider, "a setting with a slider"
        if self.zero and value == 0:
            return value
        return min(max(value, self.low, self.slider.low), self.high, self.slider.high)

    def refusal(self, value: object) -> str:
        """Return the sentence for a value that is not accepted."""
        given = "empty" if value is None else reprlib.repr(value)
        return f"{self.label} must be {self.allowed}; it is {given}."

    def detail(self, value: Any) -> str:
        """Return a sampling setting in a run's details, such as "top-k 40"; "" if it is left out."""
        return self.off if value == self.neutral and self.off is not None else f"{self.label.lower()} {value:g}"


def setting(label: str, help: str, default: Any, low: float = 0, high: float = 0, **more: Any) -> Any:
    """Make a field that is a setting; the arguments are those of `Setting`."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, help, default, low, high, **more)})


def settings_of(kind: Any) -> dict[str, Setting]:
    """Return the fields of a dataclass that are settings."""
    return {field.name: field.metadata["setting"] for field in fields(kind) if "setting" in field.metadata}


DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")


@dataclass(frozen=True, kw_only=True)
class PresetSettings:
    """The settings of a drafter that a preset can set. The page's controls for these follow the pair."""

    lookahead: int = setting(
        "Lookahead", "tokens drafted per round", 5, 1, 64,
        slider=Slider(1, 64, 1), sweep=(0, 1, 2, 3, 4, 6, 8, 12, 16),
    )  # fmt: skip
    policy: Annotated[str, BeforeValidator(lambda name: "auto" if name == "cost" else name)] = setting(  # older files
        "Lookahead policy",
        "how many tokens to draft next; auto drafts what pays here",
        "constant",
        choices={
            "constant": "Fixed",
            "heuristic": "Heuristic (+2 / −1)",
            "confidence": "Confidence threshold",
            "auto": "Auto (by measured cost)",
        },
    )
    confidence_threshold: float = setting(
        "Confidence threshold", "stop drafting when the drafter's confidence falls below this", 0.4, 0, 1,
        slider=Slider(0, 1, 0.05), sweep=(0.0, 0.2, 0.4, 0.6, 0.8),
    )  # fmt: skip
    nodes: int = setting(
        "Tree size", "maximum number of tokens in a draft tree", 16, 1, 256,
        slider=Slider(1, 256, 1), sweep=(4, 8, 16, 32, 64),
    )  # fmt: skip
    verification: str = setting(
        "Verification",
        "how sampled drafts are accepted, always exactly: Block keeps more of a chain; the others sample a tree's "
        "branches, of which Traversal keeps more",
        "token",
        choices={
            "token": "Token by token",
            "block": "Block (chains)",
            "recursive": "Recursive (sampled trees)",
            "traversal": "Traversal (sampled trees)",
        },
    )


@dataclass(frozen=True, kw_only=True)
class PairSettings(PresetSettings):
    """The default settings of a pair's lanes."""

    compiled: str = setting(
        "Compiled",
        "run both lanes as CUDA graphs over a static cache; auto = on a CUDA GPU",
        "auto",
        choices={"auto": "Auto", "on": "On", "off": "Off"},
    )


@dataclass(frozen=True, kw_only=True)
class DraftSettings(PresetSettings):
    """The settings of a lane's drafts."""

    keep_free_gb: float = setting(
        "Reserve memory (GB)",
        "shorten drafts to leave this much device memory free; 0 = no limit",
        0.0,
        0,
        10**9,
    )


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """The settings of an answer."""

    max_new_tokens: int = setting(
        "Max new tokens", "maximum answer length", 128, 1, 2**31 - 1, slider=Slider(8, 2048, 8)
    )
    temperature: float = setting(
        "Temperature", "0 = greedy; higher = more random", 0.0, 0.01, 10,
        slider=Slider(0, 2, 0.01), zero=True, sweep=(0.0, 0.3, 0.7, 1.0), neutral=1.0,
    )  # fmt: skip
    top_p: float = setting(
        "Top-p", "keep the most likely tokens up to this total probability", 1.0, 0.001, 1,
        slider=Slider(0.05, 1, 0.01), neutral=1.0,
    )  # fmt: skip
    top_k: int = setting(
        "Top-k", "keep the k most likely tokens; 0 = all", 0, 0, 2**31 - 1,
        slider=Slider(0, 200, 1), neutral=0, off="every token",
    )  # fmt: skip
    min_p: float = setting(
        "Min-p", "keep the tokens at least this likely, relative to the likeliest; 0 = all", 0.0, 0, 1,
        slider=Slider(0, 1, 0.01), neutral=0.0, off="",
    )  # fmt: skip
    repetition_penalty: float = setting(
        "Repetition penalty", "1 = none; applies to greedy decoding too", 1.0, 0.01, 10,
        slider=Slider(1, 2, 0.01), neutral=1.0, off="", greedy=True,
    )  # fmt: skip
    presence_penalty: float = setting(
        "Presence penalty", "subtracted from the logits of tokens that the answer already has; applies to greedy "
        "decoding too", 0.0, -2, 2, slider=Slider(-2, 2, 0.05), neutral=0.0, off="", greedy=True,
    )  # fmt: skip
    frequency_penalty: float = setting(
        "Frequency penalty", "subtracted once for each time that the answer has the token; applies to greedy decoding "
        "too", 0.0, -2, 2, slider=Slider(-2, 2, 0.05), neutral=0.0, off="", greedy=True,
    )  # fmt: skip
    seed: int = setting(
        "Seed",
        "the same seed draws the same samples, unless a drafter that samples has the lookahead auto or reserved "
        "memory, which timing or other programs change",
        0,
        0,
        2**63 - 1,
    )
    stop_strings: str = setting(
        "Stop strings",
        r"the answer ends before the first of these; one a line, \n is a line break inside one",
        "",
        line="TEXT",
    )
    system: str = setting("System prompt", "optional; passed to the chat template", "")
    chat_template: bool = setting(
        "Chat template", "wrap the prompt in the model's chat format; off = continue the raw text", True
    )
    json_schema: str = setting("JSON schema", "the answer is JSON that satisfies it", "", file=True)
    regex: str = setting("Regular expression", "the whole answer matches this expression", "")
    grammar: str = setting("Lark grammar", "the answer is what the rule `start` of this grammar derives", "", file=True)
    prefix_cache: bool = setting(
        "Prefix cache", "go on from the KV cache of a conversation's earlier turns; off = prefill them again", True
    )
    tools: str = setting("Tools", "JSON list of the tools the model may call; for the chat template", "", file=True)
    template: str = setting(
        "Template arguments", "KEY=VALUE that the chat template names, such as enable_thinking=false", "",
        line="KEY=VALUE",
    )  # fmt: skip


# All settings, in the order of the endpoint's arguments.
SETTINGS: dict[str, Setting] = {
    "prompt": Setting("Prompt", "sent to both lanes", ""),
    "pair": Setting("Models", "the model, and what can draft for it", "starter"),
    "target": Setting("Target model", "Hugging Face id or local folder", ""),
    "assistant": Setting(
        "Drafter model", "Hugging Face id or local folder; for early exit, the number of layers to draft with", ""
    ),
    "drafter": Setting("Drafter", "how tokens are drafted", ""),
    **settings_of(DraftSettings),
    **settings_of(AnswerSettings),
    **settings_of(PairSettings),
    "messages": Setting("Messages", "JSON list of the messages before the prompt, with roles", "", file=True),
    "dtype": Setting(
        "Number format",
        "in bfloat16 a CPU waits for memory, as most GPUs do, so drafts pay; in 4 bits both lanes are faster, but it "
        "computes, so drafts pay less",
        "auto",
        choices={name: name.capitalize() if name == "auto" else name for name in DTYPES},
    ),
}
PRESET, DRAFTING, ANSWER = (tuple(settings_of(kind)) for kind in (PresetSettings, DraftSettings, AnswerSettings))
CONSTRAINTS = ("json_schema", "regex", "grammar")  # a request has at most one of these
SAMPLING = tuple(name for name in ANSWER if SETTINGS[name].neutral is not None)
SWEPT = {name: it.sweep for name, it in SETTINGS.items() if it.sweep}
POLICIES = tuple(SETTINGS["policy"].choices)


def default(name: str) -> Any:
    """Return the default of a setting."""
    return SETTINGS[name].default


def flag(name: str) -> str:
    """Return the option of a setting in the terminal."""
    return f"--{name.removesuffix('_gb').replace('_', '-')}"


def check_fields(values: Any, *, keys: bool = False) -> None:
    """Check the fields of a dataclass that are settings.

    Args:
        keys: whether to name the field, for those who write it in a file.

    Raises:
        PlaygroundError: the first one that is not accepted, in words.
    """
    for name, it in settings_of(values).items():
        value = getattr(values, name)
        check(it.accepts(value), f"{name}: {it.refusal(value)}" if keys else it.refusal(value))


def differing(checkpoint: Mapping[str, float], request: Mapping[str, float]) -> dict[str, float]:
    """Return the checkpoint's settings that differ from the request's."""
    return {name: value for name, value in checkpoint.items() if request[name] != value}
