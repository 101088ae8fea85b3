"""Policies for the number of tokens to draft next, the γ of the papers. Every run has a policy of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from playground.lane import Lane
from playground.models.device import free_bytes


class Lookahead(Protocol):
    """A policy.

    Attributes:
        tokens: γ, the number of tokens to draft next.
        stop_below: the drafter stops after a token whose q is lower, or before one whose confidence is.
        capped: whether memory allowed fewer tokens than the policy wanted.
    """

    tokens: int
    stop_below: float
    capped: bool

    def update(self, drafted: int, accepted: int, draft_s: float, target_s: float) -> None:
        """Learns from a round.

        Args:
            drafted: tokens drafted; of a tree, its depth.
            accepted: tokens accepted.
            draft_s: seconds spent drafting.
            target_s: seconds spent in the target: verifying, then rolling both caches back.
        """


class Constant:
    """A lookahead that never changes."""

    stop_below = 0.0
    capped = False

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def update(self, drafted: int, accepted: int, draft_s: float, target_s: float) -> None:
        pass


class Heuristic(Constant):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more tokens after a draft that was accepted in
    full, one fewer (but at least one) after any other."""

    def update(self, drafted: int, accepted: int, draft_s: float, target_s: float) -> None:
        if drafted:
            self.tokens = self.tokens + 2 if accepted == drafted else max(1, self.tokens - 1)


class Confidence(Constant):
    """A constant lookahead that ends early, after a token whose q is below a threshold: transformers'
    `assistant_confidence_threshold`. A lookup has q = 1 for all its tokens. A drafter with a confidence head ends
    before the first token whose confidence is below the threshold."""

    def __init__(self, tokens: int, threshold: float) -> None:
        super().__init__(tokens)
        self.stop_below = threshold


class CostModel(Constant):
    """Picks the γ, from 1 to `most`, that maximises expected tokens/s by what this run has measured so far.

    Leviathan et al. 2023, theorem 3.8: with α the probability that a draft token is accepted, and c the time to draft
    one in target passes, a round of γ draft tokens yields (1 - α^(γ+1)) / (1 - α) tokens in the time of γc + 1 passes.
    α and c come from running sums with exponential decay: KEEP per round.
    """

    KEEP = 0.95

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._choices = range(1, most + 1)
        self._verified, self._accepted = 2.0, 1.0  # prior: α = 1/2
        self._drafted = self._draft_s = self._passes = self._pass_s = 0.0
        self._begun = False

    def update(self, drafted: int, accepted: int, draft_s: float, target_s: float) -> None:
        if not self._begun:  # up to the first draft, times include the target's and the drafter's pass over the prompt
            self._begun = drafted > 0
            return
        self._verified = self.KEEP * self._verified + min(accepted + 1, drafted)
        self._accepted = self.KEEP * self._accepted + accepted
        self._drafted = self.KEEP * self._drafted + drafted
        self._draft_s = self.KEEP * self._draft_s + draft_s
        self._passes = self.KEEP * self._passes + 1
        self._pass_s = self.KEEP * self._pass_s + target_s
        if self._drafted:
            alpha = min(self._accepted / self._verified, 0.99)  # the formula has no value at 1
            c = (self._draft_s / self._drafted) / (self._pass_s / self._passes)
            self.tokens = max(self._choices, key=lambda gamma: tokens_per_pass(alpha, gamma) / (gamma * c + 1))


class MemoryCap:
    """Reduces another policy's lookahead while fewer than `keep_free` bytes are free on the device: in proportion, down
    to 0, which is standard decoding. A tree shrinks with its lookahead.

    Args:
        free: returns the number of bytes that are currently free.
    """

    def __init__(self, policy: Lookahead, keep_free: float, free: Callable[[], int]) -> None:
        self._policy, self._keep_free, self._free = policy, keep_free, free
        self.stop_below = policy.stop_below
        self._ask()

    def update(self, drafted: int, accepted: int, draft_s: float, target_s: float) -> None:
        self._policy.update(drafted, accepted, draft_s, target_s)
        self._ask()

    def _ask(self) -> None:
        share = min(1.0, self._free() / self._keep_free)
        self.tokens = int(share * self._policy.tokens)
        self.capped = self.tokens < self._policy.tokens


def tokens_per_pass(alpha: float, gamma: int) -> float:
    """Returns the expected tokens of a round, the target's own included (Leviathan et al. 2023, equation 1). `alpha` is
    below 1."""
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
