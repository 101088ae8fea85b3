"""The trace: what one lane did on one request, round by round, and its JSON form.

Everything a person sees is drawn from these dataclasses, and every figure can be computed again from the exported file.
This module knows neither models nor pages.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

from playground.errors import PlaygroundError

SCHEMA_VERSION = 1

Decision = Literal["accepted", "rejected", "unused"]
Reason = Literal["plain", "correction", "bonus"]
Finish = Literal["eos", "length", "context", "stopped"]


@dataclass(frozen=True)
class DraftToken:
    """A token that the drafter proposed.

    `q` is the drafter's probability of it (1 for a lookup). `p` is the target's probability of it given everything
    before it: of the distribution that was sampled from or, in greedy decoding, of the plain softmax of the logits.
    `margin` is the gap between the target's two highest logits there. Places behind the first rejection, or behind an
    end of text, are `unused`: the target never judged them on a kept prefix, so `p` and `margin` are None.

    `text` is what the token adds to the visible text: whole characters only, so a token that ends inside a character
    has the text "" and the token that completes it carries the character.
    """

    id: int
    text: str
    special: bool
    q: float
    p: float | None
    margin: float | None
    decision: Decision


@dataclass(frozen=True)
class TargetToken:
    """The token that the target added by itself at the end of a round.

    `plain`: nothing had been drafted. `correction`: it replaced the first rejected draft token. `bonus`: every draft
    token was accepted and the pass had one more distribution to give. `p`, `margin`, `text`: as for DraftToken.
    """

    id: int
    text: str
    special: bool
    p: float
    margin: float
    reason: Reason


@dataclass(frozen=True)
class Round:
    """One pass of the target. Times are seconds since the lane was handed the prompt's token ids.

    `lookahead` is what the policy asked for; the drafter may have proposed fewer. `draft_s` and `verify_s` are
    durations with the device synchronised; the tokens of the round exist for the user from `end_s` on. `target` is None
    where an accepted draft token ended the text.
    """

    lookahead: int
    drafted: tuple[DraftToken, ...]
    target: TargetToken | None
    start_s: float
    draft_s: float
    verify_s: float
    end_s: float

    @property
    def accepted(self) -> tuple[DraftToken, ...]:
        return tuple(token for token in self.drafted if token.decision == "accepted")

    @property
    def tokens(self) -> tuple[DraftToken | TargetToken, ...]:
        """What the round added to the output, in order."""
        return self.accepted + ((self.target,) if self.target else ())


@dataclass(frozen=True)
class Request:
    """What every lane of a comparison is asked. A temperature of 0 is greedy decoding; a top_k of 0 keeps every
    token."""

    prompt: str
    system: str = ""
    chat_template: bool = True
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check(bool(self.prompt.strip()), "The prompt is empty. Write something for the models to continue.")
        for name, text in (("prompt", self.prompt), ("system prompt", self.system)):
            at = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            _check(
                at is None,
                f"The {name} holds half of a surrogate pair at character {at}, which is not text and cannot be "
                "tokenised. Remove that character.",
            )
        _check(self.max_new_tokens >= 1, f"max_new_tokens must be at least 1, not {self.max_new_tokens}.")
        _check(0 <= self.temperature <= 10, f"The temperature must lie between 0 and 10, not {self.temperature}.")
        _check(0 < self.top_p <= 1, f"top_p must lie above 0 and at most at 1, not {self.top_p}.")
        _check(self.top_k >= 0, f"top_k must be 0 (all tokens) or more, not {self.top_k}.")
        _check(
            0 < self.repetition_penalty <= 10,
            f"The repetition penalty must lie above 0 and at most at 10, not {self.repetition_penalty}.",
        )
        _check(0 <= self.seed < 2**63, f"The seed must be a whole number from 0 to 2^63 - 1, not {self.seed}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Lane:
    """A target, one way of drafting for it, and the lookahead's settings. `drafter` "none" is standard decoding."""

    name: str
    target: str
    drafter: str = "none"
    assistant: str | None = None
    lookahead: int = 5
    policy: str = "constant"
    confidence_threshold: float = 0.4

    def __post_init__(self) -> None:
        _check(1 <= self.lookahead <= 64, f"The lookahead must lie between 1 and 64 tokens, not {self.lookahead}.")
        _check(
            0 <= self.confidence_threshold <= 1,
            f"The confidence threshold must lie between 0 and 1, not {self.confidence_threshold}.",
        )


@dataclass(frozen=True)
class Environment:
    """Where a lane ran: enough to know what its times compare with. `weights` names the files' origin, target first."""

    playground: str
    python: str
    torch: str
    transformers: str
    platform: str
    device: str
    device_name: str
    dtype: str
    threads: int
    weights: tuple[str, ...]
    created: str


@dataclass(frozen=True)
class Trace:
    """One lane on one request. `prompt_ids` are the token ids that the target was given."""

    lane: Lane
    request: Request
    environment: Environment
    prompt_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    finish: Finish

    @cached_property
    def tokens(self) -> tuple[DraftToken | TargetToken, ...]:
        """The output's tokens, in order."""
        return tuple(token for round_ in self.rounds for token in round_.tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def text(self) -> str:
        """The output without its special tokens."""
        return "".join(token.text for token in self.tokens if not token.special)


@dataclass(frozen=True)
class Comparison:
    """Two or more lanes on one request. The first is the baseline that the others are compared with."""

    lanes: tuple[Trace, ...]

    def __post_init__(self) -> None:
        _check(len(self.lanes) >= 2, "A comparison needs two lanes or more.")

    def to_json(self) -> dict[str, Any]:
        """The export: each lane with its settings, environment, rounds and metrics, then how the lanes compare."""
        from playground import metrics  # metrics reads this module; the export alone needs both

        return {
            "schema_version": SCHEMA_VERSION,
            "lanes": [
                {
                    "settings": {**dataclasses.asdict(lane.lane), **dataclasses.asdict(lane.request)},
                    "environment": dataclasses.asdict(lane.environment),
                    "prompt_ids": list(lane.prompt_ids),
                    "token_ids": list(lane.token_ids),
                    "text": lane.text,
                    "finish": lane.finish,
                    "rounds": [dataclasses.asdict(round_) for round_ in lane.rounds],
                    "metrics": dataclasses.asdict(metrics.measure(lane)),
                }
                for lane in self.lanes
            ],
            "comparison": dataclasses.asdict(metrics.compare(self.lanes[0], self.lanes[1])),
        }

    @classmethod
    def from_json(cls, data: Any) -> Comparison:
        """Reads what `to_json` wrote. Metrics are not read: they are computed again from the rounds.

        Raises:
            PlaygroundError: the data is not a trace, or one of another schema version.
        """
        _check(
            isinstance(data, dict) and "schema_version" in data and isinstance(data.get("lanes"), list),
            "This file is not a trace of the playground: it has no schema_version and no lanes. "
            "Choose a file that the button Save trace or `compare --json` wrote.",
        )
        version = data["schema_version"]
        _check(
            version == SCHEMA_VERSION,
            f"This trace has schema version {version!r}; this playground reads version {SCHEMA_VERSION}. "
            "Open it with the release that wrote it.",
        )
        return cls(tuple(_read_lane(lane, f"lanes[{i}]") for i, lane in enumerate(data["lanes"])))


def load(text: str | bytes) -> Comparison:
    """Reads an exported trace.

    Raises:
        PlaygroundError: not JSON, or not a trace.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlaygroundError(
            f"This file is not JSON ({type(error).__name__}). Choose a file that Save trace wrote."
        ) from None
    return Comparison.from_json(data)


def _read_lane(data: Any, where: str) -> Trace:
    _check(isinstance(data, dict), f"The trace is damaged: {where} should be an object.")
    settings = data.get("settings")
    return Trace(
        lane=_read(Lane, settings, f"{where}.settings"),
        request=_read(Request, settings, f"{where}.settings"),
        environment=_read(Environment, data.get("environment"), f"{where}.environment"),
        prompt_ids=_read_value(tuple[int, ...], data.get("prompt_ids"), f"{where}.prompt_ids"),
        rounds=_read_value(tuple[Round, ...], data.get("rounds"), f"{where}.rounds"),
        finish=_read_value(Finish, data.get("finish"), f"{where}.finish"),
    )


def _read(kind: type, data: Any, where: str) -> Any:
    """Builds the dataclass `kind` from a JSON object; keys that `kind` does not have are left alone."""
    _check(isinstance(data, dict), f"The trace is damaged: {where} should be an object.")
    hints = get_type_hints(kind)
    missing = [name for name in hints if name not in data]
    _check(not missing, f"The trace is damaged: {where} has no {', '.join(missing)}.")
    return kind(**{name: _read_value(hint, data[name], f"{where}.{name}") for name, hint in hints.items()})


def _read_value(hint: Any, value: Any, where: str) -> Any:
    """Checks `value` against a type hint of this module's dataclasses and converts lists to tuples, objects to them."""
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, where)
    options = get_args(hint)
    if len(options) == 2 and options[1] is Ellipsis:
        _check(isinstance(value, list), f"The trace is damaged: {where} should be a list.")
        return tuple(_read_value(options[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if type(None) in options:
        return None if value is None else _read_value(options[0], value, where)
    if options:
        _check(value in options, f"The trace is damaged: {where} should be one of {', '.join(options)}.")
        return value
    if hint is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        good = type(value) is hint
    _check(good, f"The trace is damaged: {where} should be a value of type {hint.__name__}.")
    return value


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise PlaygroundError(message)
