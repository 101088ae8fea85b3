"""The trace: what one lane did on one request, round by round.

Everything a person sees is drawn from these dataclasses. This module knows neither models nor pages; `export` writes
them to files and reads them again.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from playground.errors import PlaygroundError
from playground.ways import POLICIES

Decision = Literal["accepted", "rejected", "unused"]
Reason = Literal["plain", "correction", "bonus"]
Finish = Literal["eos", "length", "context", "stopped"]


@dataclass(frozen=True)
class DraftToken:
    """A token that the drafter proposed.

    `q` is the drafter's probability of it (1 for a lookup). `p` is the target's probability of it given everything
    before it: of the distribution that was sampled from or, in greedy decoding, of the plain softmax of the logits.
    `margin` is the gap between the target's two highest logits there. Places behind a rejection, or behind an end
    of text, are `unused`: the target never judged them on a kept prefix, so `p` and `margin` are None.

    `text` is what the token adds to the visible text: whole characters only, so a token that ends inside a character
    has the text "" and the token that completes it carries the character.

    `parent`: in a tree, the index among the round's drafted tokens of the one that it stands behind, -1 for the text.
    None in a chain, where each stands behind the one before.
    """

    id: int
    text: str
    special: bool
    q: float
    p: float | None
    margin: float | None
    decision: Decision
    parent: int | None = None


@dataclass(frozen=True)
class TargetToken:
    """The token that the target added by itself at the end of a round.

    `plain`: nothing had been drafted. `correction`: it replaced the first rejected draft token. `bonus`: every draft
    token was accepted and the pass had one more distribution to give. `p`, `margin`, `text`: as for DraftToken.

    `rank`: of a correction, where it stood among the drafter's candidates for that place, 1 being the best: what was
    drafted there stood higher, or was drawn. 0 where the drafter can never propose it. None where it had none (lookup).
    """

    id: int
    text: str
    special: bool
    p: float
    margin: float
    reason: Reason
    rank: int | None = None


@dataclass(frozen=True)
class Round:
    """One pass of the target. Times are seconds since the lane was handed the prompt's token ids.

    `lookahead` is what the policy asked for; the drafter may have proposed fewer. `draft_s` and `verify_s` are
    durations with the device synchronised; the tokens of the round exist for the user from `end_s` on. `target` is None
    where an accepted draft token ended the text. `capped`: memory was short, and the lookahead is less than the policy
    wanted.
    """

    lookahead: int
    drafted: tuple[DraftToken, ...]
    target: TargetToken | None
    start_s: float
    draft_s: float
    verify_s: float
    end_s: float
    capped: bool = False

    @property
    def is_tree(self) -> bool:
        return any(token.parent is not None for token in self.drafted)

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
    """A target, one way of drafting for it, and the lookahead's settings. `drafter` "none" is standard decoding;
    `assistant` names what drafts, a model or a trained drafter, where the way of drafting needs weights. `nodes`: the
    most tokens of a draft tree, of all its branches together. `keep_free_gb`: drafts shrink while less memory than this
    is free on the device, in 1e9 bytes; 0 is no such cap."""

    name: str
    target: str
    drafter: str = "none"
    assistant: str | None = None
    lookahead: int = 5
    policy: str = "constant"
    confidence_threshold: float = 0.4
    nodes: int = 16
    keep_free_gb: float = 0.0

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


@dataclass(frozen=True)
class PassTime:
    """The seconds that a pass of the target over so many tokens takes behind a short text."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Environment:
    """Where a lane ran: enough to know what its times compare with. `weights` names the files' origin, target first.
    `pass_times`: what trees are cut by, from one token upwards; empty before the first tree."""

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
    pass_times: tuple[PassTime, ...] = ()


@dataclass(frozen=True)
class Memory:
    """Bytes that a lane held on the device when it ended. Weights that drafter and target share count as the target's;
    what a pass needs besides is not counted, nor is a lookup's index."""

    target_weights: int
    target_cache: int
    drafter_weights: int
    drafter_cache: int

    @property
    def total(self) -> int:
        return self.target_weights + self.target_cache + self.drafter_weights + self.drafter_cache


@dataclass(frozen=True)
class Trace:
    """One lane on one request. `prompt_ids` are the token ids that the target was given. `memory` is None in files of
    before it was measured."""

    lane: Lane
    request: Request
    environment: Environment
    prompt_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    finish: Finish
    memory: Memory | None = None

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
        check(len(self.lanes) >= 2, "A comparison needs two lanes or more.")


def check(condition: bool, message: str) -> None:
    """Raises a PlaygroundError with the message where the condition does not hold."""
    if not condition:
        raise PlaygroundError(message)
