"""How many tokens to draft next. A policy lives for one run: it starts afresh with every request."""

from __future__ import annotations

from typing import Protocol

from playground.errors import PlaygroundError
from playground.trace import Lane
from playground.ways import POLICIES


class Lookahead(Protocol):
    """`tokens` is what to ask the drafter for next; it may stop behind a token whose q is under `stop_below`."""

    tokens: int
    stop_below: float

    def update(self, drafted: int, accepted: int) -> None:
        """Learns what became of a draft."""


class Constant:
    """The same lookahead in every round."""

    stop_below = 0.0

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def update(self, drafted: int, accepted: int) -> None:
        pass


class Heuristic(Constant):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a draft that was accepted whole, one
    less (but at least one) after any other."""

    def update(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.tokens = self.tokens + 2 if accepted == drafted else max(1, self.tokens - 1)


class Confidence(Constant):
    """A constant lookahead that ends early behind a token of which the drafter was not sure, as transformers'
    `assistant_confidence_threshold` does. A lookup is always sure of its tokens."""

    def __init__(self, tokens: int, threshold: float) -> None:
        super().__init__(tokens)
        self.stop_below = threshold


def lookahead_for(lane: Lane) -> Lookahead:
    """Raises:
    PlaygroundError: a policy that does not exist.
    """
    match lane.policy:
        case "constant":
            return Constant(lane.lookahead)
        case "heuristic":
            return Heuristic(lane.lookahead)
        case "confidence":
            return Confidence(lane.lookahead, lane.confidence_threshold)
    raise PlaygroundError(f"There is no lookahead policy {lane.policy!r}. Choose one of {', '.join(POLICIES)}.")
