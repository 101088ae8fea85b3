"""What is asked: a request, and the lanes that it goes through. Knows neither models nor pages."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from playground.drafting_methods import METHODS, POLICIES
from playground.errors import PlaygroundError, check
from playground.presets import Pair

STANDARD = "Standard"  # the name of the lane that decodes without a drafter
LOCAL = "local"  # the backend in this process


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
        check(bool(self.prompt.strip()), "The prompt is empty. Write something for the models to continue.")
        for name, text in (("prompt", self.prompt), ("system prompt", self.system)):
            at = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            check(
                at is None,
                f"The {name} holds half of a surrogate pair at character {at}, which is not text and cannot be "
                "tokenised. Remove that character.",
            )
        check(
            1 <= self.max_new_tokens < 2**31,
            f"max_new_tokens must be at least 1 and under 2^31, not {reprlib.repr(self.max_new_tokens)}.",
        )
        check(
            self.temperature == 0 or 0.01 <= self.temperature <= 10,
            f"The temperature must be 0 (greedy) or lie between 0.01 and 10, not {self.temperature}.",
        )
        check(0 < self.top_p <= 1, f"top_p must lie above 0 and at most at 1, not {self.top_p}.")
        check(
            0 <= self.top_k < 2**31,
            f"top_k must be 0 (all tokens) or more, and under 2^31, not {reprlib.repr(self.top_k)}.",
        )
        check(
            0.01 <= self.repetition_penalty <= 10,
            f"The repetition penalty must lie between 0.01 and 10, not {self.repetition_penalty}.",
        )
        check(0 <= self.seed < 2**63, f"The seed must be a whole number from 0 to 2^63 - 1, not {self.seed}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Lane:
    """A target, a way of drafting for it, and the settings of the drafts.

    `backend` names what runs the lane. `drafter` is a key of METHODS; "none" is standard decoding. `assistant` names
    the draft model or trained drafter, if the method needs weights. `nodes`: the largest number of tokens in a draft
    tree. `keep_free_gb`: drafts shrink while less memory than this (1e9 bytes) is free on the device; 0 is no limit.
    """

    name: str
    target: str
    drafter: str = "none"
    assistant: str | None = None
    lookahead: int = 5
    policy: str = "constant"
    confidence_threshold: float = 0.4
    nodes: int = 16
    keep_free_gb: float = 0.0
    backend: str = LOCAL

    def __post_init__(self) -> None:
        check(
            self.policy in POLICIES,
            f"There is no lookahead policy {reprlib.repr(self.policy)}. Choose one of {', '.join(POLICIES)}.",
        )
        check(
            0 <= self.keep_free_gb < 1e15,
            f"The memory to keep free must be 0 GB or more, and under 1e15, not {self.keep_free_gb}.",
        )
        check(1 <= self.nodes <= 256, f"A draft tree must have 1 to 256 tokens, not {self.nodes}.")
        check(1 <= self.lookahead <= 64, f"The lookahead must lie between 1 and 64 tokens, not {self.lookahead}.")
        check(
            0 <= self.confidence_threshold <= 1,
            f"The confidence threshold must lie between 0 and 1, not {self.confidence_threshold}.",
        )


def standard_lane(pair: Pair) -> Lane:
    return Lane(STANDARD, pair.target)


def assisted_lane(
    pair: Pair,
    drafter: str | None = None,
    lookahead: int | None = None,
    policy: str | None = None,
    confidence_threshold: float | None = None,
    nodes: int | None = None,
    keep_free_gb: float = 0.0,
) -> Lane:
    """A lane to compare with standard decoding. None takes the pair's value. The drafter "none" is standard decoding
    once more, which shows how much two equal measurements differ.

    Raises:
        PlaygroundError: a drafter that does not exist, or that the pair lacks.
    """
    drafter = drafter or pair.drafter
    if drafter not in METHODS:
        raise PlaygroundError(f"There is no drafter {drafter!r}. Choose one of {', '.join(METHODS)}.")
    return Lane(
        name=METHODS[drafter].title,
        target=pair.target,
        drafter=drafter,
        assistant=pair.weights_of(drafter),
        lookahead=pair.lookahead if lookahead is None else lookahead,
        policy=policy or pair.policy,
        confidence_threshold=pair.confidence_threshold if confidence_threshold is None else confidence_threshold,
        nodes=pair.nodes if nodes is None else nodes,
        keep_free_gb=keep_free_gb,
    )


def label(lane: Lane) -> str:
    """A short name for the lane that tells its settings apart, such as "composite 10, 64 nodes, confidence 0.4"."""
    policy = "" if lane.policy == "constant" else f", {lane.policy}"
    threshold = f" {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    tree = f", {lane.nodes} nodes" if METHODS[lane.drafter].tree else ""
    return f"{lane.drafter} {lane.lookahead}{tree}{policy}{threshold}"
