"""Tokens per pass, estimated from drafts over a text that is there already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Drafts over a text. Of each position of a draft, counted from the first: how many drafts came there, all before
    it being accepted, and how many had it accepted. `agreed`: of the text's `tokens`, those that are the target's own
    choice."""

    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    agreed: int
    tokens: int

    @property
    def tokens_per_pass(self) -> float:
        """1 + Σ_j Π_i≤j α_i, where α_i is the share of drafts accepted at position i of those that came there."""
        total, survives = 1.0, 1.0
        for reached, accepted in zip(self.reached, self.accepted, strict=True):
            survives *= accepted / reached if reached else 0.0
            total += survives
        return total

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.tokens if self.tokens else None


def add_counts(several: Iterable[Counts]) -> Counts:
    """Those of several texts, at least one, with drafts of one length."""
    found = list(several)
    return Counts(
        tuple(map(sum, zip(*(it.reached for it in found), strict=True))),
        tuple(map(sum, zip(*(it.accepted for it in found), strict=True))),
        sum(it.agreed for it in found),
        sum(it.tokens for it in found),
    )
