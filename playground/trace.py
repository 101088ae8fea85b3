"""The trace: what one lane did on one request, round by round.

Everything a person sees is drawn from these dataclasses. This module knows neither models nor pages; `export` writes
them to files and reads them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from playground.errors import check
from playground.lane import Lane, Request

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

    `passes`: forward passes of the target, one unless a recurrent target had to be fed again after a rejection.
    `commit_s`: rolling both caches back to what was accepted, such passes included; it comes after `end_s`.
    `annotate_s`: working out what only the trace shows (p, margins, text); it comes after that.
    """

    lookahead: int
    drafted: tuple[DraftToken, ...]
    target: TargetToken | None
    start_s: float
    draft_s: float
    verify_s: float
    end_s: float
    capped: bool = False
    passes: int = 1
    commit_s: float = 0.0
    annotate_s: float = 0.0

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
