"""How many tokens to draft next. A policy lives for one run: it starts afresh with every request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from playground.lane import Lane
from playground.models.device import free_bytes


class Lookahead(Protocol):
    """`tokens` is what to ask the drafter for next; it may stop behind a token whose q is under `stop_below`. `capped`:
    whether memory allowed less than the policy wanted."""

    tokens: int
    stop_below: float
    capped: bool

    def update(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        """Learns what became of a draft, and the seconds that drafting it and the target's pass took. Of a tree
        `drafted` is the depth."""


class Constant:
    """The same lookahead in every round."""

    stop_below = 0.0
    capped = False

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def update(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        pass


class Heuristic(Constant):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a draft that was accepted whole, one
    less (but at least one) after any other."""

    def update(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        if drafted:
            self.tokens = self.tokens + 2 if accepted == drafted else max(1, self.tokens - 1)


class Confidence(Constant):
    """A constant lookahead that ends early behind a token of which the drafter was not sure, as transformers'
    `assistant_confidence_threshold` does. A lookup is always sure of its tokens."""

    def __init__(self, tokens: int, threshold: float) -> None:
        super().__init__(tokens)
        self.stop_below = threshold


class CostModel(Constant):
    """The lookahead, from 1 to `most`, that promises the most tokens a second by what this run has measured so far.

    Leviathan et al. 2023, theorem 3.8: with α the chance that a draft token is accepted, and c what drafting one costs
    in passes of the target, γ drafted tokens make a round give (1 - α^(γ+1)) / (1 - α) tokens in the time of γc + 1
    passes. α and c come from running sums in which a round counts KEEP times what the next one does.
    """

    KEEP = 0.95

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._choices = range(1, most + 1)
        self._judged, self._accepted = 2.0, 1.0  # before anything is known: half of the drafts stand
        self._drafted = self._draft_s = self._passes = self._pass_s = 0.0
        self._prefilled = False

    def update(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        if not self._prefilled:  # its times are the prompt's
            self._prefilled = True
            return
        self._judged = self.KEEP * self._judged + min(accepted + 1, drafted)
        self._accepted = self.KEEP * self._accepted + accepted
        self._drafted = self.KEEP * self._drafted + drafted
        self._draft_s = self.KEEP * self._draft_s + draft_s
        self._passes = self.KEEP * self._passes + 1
        self._pass_s = self.KEEP * self._pass_s + verify_s
        if self._drafted:
            alpha = min(self._accepted / self._judged, 0.99)  # at 1 any number would do
            c = (self._draft_s / self._drafted) / (self._pass_s / self._passes)
            self.tokens = max(self._choices, key=lambda gamma: tokens_per_pass(alpha, gamma) / (gamma * c + 1))


class MemoryCap:
    """Shortens what another policy asks for while less than `keep_free` bytes are free on the device: in proportion,
    down to nothing, which is standard decoding. A tree shrinks with its lookahead.

    Args:
        free: the bytes that are free now.
    """

    def __init__(self, policy: Lookahead, keep_free: float, free: Callable[[], int]) -> None:
        self._policy, self._keep_free, self._free = policy, keep_free, free
        self.stop_below = policy.stop_below
        self._ask()

    def update(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        self._policy.update(drafted, accepted, draft_s, verify_s)
        self._ask()

    def _ask(self) -> None:
        share = min(1.0, self._free() / self._keep_free)
        self.tokens = int(share * self._policy.tokens)
        self.capped = self.tokens < self._policy.tokens


def tokens_per_pass(alpha: float, gamma: int) -> float:
    """Expected tokens of a round, the target's own counted (Leviathan et al. 2023, equation 1); alpha under 1."""
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def lookahead_for(lane: Lane, device: torch.device) -> Lookahead:
    policy = _policy(lane)
    if not lane.keep_free_gb:
        return policy
    return MemoryCap(policy, 1e9 * lane.keep_free_gb, partial(free_bytes, device))


def _policy(lane: Lane) -> Lookahead:
    match lane.policy:
        case "heuristic":
            return Heuristic(lane.lookahead)
        case "confidence":
            return Confidence(lane.lookahead, lane.confidence_threshold)
        case "cost":
            return CostModel(lane.lookahead)
    return Constant(lane.lookahead)
