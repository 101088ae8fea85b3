"""Tokens per pass, estimated from drafts over an existing text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Drafts over a text. `reached`: for each position of a draft, the number of drafts whose earlier tokens were all
    accepted. `accepted`: how many of these had this position accepted, too. `agreed`: those of the text's `tokens` that
    are the target's own choice."""

    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    agreed: int
    tokens: int

    @property
    def tokens_per_pass(self) -> float:
        """1 + Σ_j Π_i≤j α_i, where α_i is the share of drafts that reached position i which had it accepted."""
        total, survives = 1.0, 1.0
        for reached, accepted in zip(self.reached, self.accepted, strict=True):
            survives *= accepted / reached if reached else 0.0
            total += survives
        return total

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.tokens if self.tokens else None


def add_counts(several: Iterable[Counts]) -> Counts:
    """Add up the counts of one text or more, with drafts of one length."""
    found = list(several)
    return Counts(
        tuple(map(sum, zip(*(it.reached for it in found), strict=True))),
        tuple(map(sum, zip(*(it.accepted for it in found), strict=True))),
        sum(it.agreed for it in found),
        sum(it.tokens for it in found),
    )
