"""What the loop asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain of them, or a tree whose branches are alternatives.

    Attributes:
        ids: k token ids.
        q: the drafter's own probability of each, to be shown; None of a token that it did not draft.
        probabilities: (k, vocabulary), the distributions that the ids were sampled from. None where they were
            chosen instead (argmax, lookup).
        tree: for each token the index of its parent, which comes before it, or -1 after the committed
            tokens. None is a chain. Siblings that were sampled were drawn in their order, without replacement, and each
            has the distribution that the first was drawn from.
        candidates: for each token the (draft vocabulary,) scores that it was taken from; None where nothing was scored.
        draft_ids: (draft vocabulary,), the token id of each score; None where they are 0, 1, 2, …
    """

    ids: list[int]
    q: Sequence[float | None]
    probabilities: torch.Tensor | None = None
    tree: list[int] | None = None
    candidates: Sequence[torch.Tensor] | None = None
    draft_ids: torch.Tensor | None = None

    @property
    def parents(self) -> Sequence[int]:
        """The same as `tree`, for a chain as well."""
        return range(-1, len(self.ids) - 1) if self.tree is None else self.tree

    @property
    def depths(self) -> list[int]:
        """Of the last committed token, then of each drafted token: how many tokens its branch has."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths

    @property
    def depth(self) -> int:
        """The number of tokens in its longest branch."""
        return max(self.depths)

    def path(self, i: int) -> list[int]:
        """The indices of the tokens on the branch that ends at token i; empty for -1."""
        indices = []
        while i >= 0:
            indices.append(i)
            i = self.parents[i]
        return indices[::-1]

    def rank(self, i: int, id_: int) -> torch.Tensor | None:
        """The rank of token `id_` among the candidates for the position of token i, 1 being the best; 0 if it is not
        among them, None if nothing was scored. A tensor of no dimensions, on the device."""
        if self.candidates is None:
            return None
        scores = self.candidates[i]
        ids = torch.arange(len(scores), device=scores.device) if self.draft_ids is None else self.draft_ids
        own = scores.masked_fill(ids[: len(scores)] != id_, float("-inf")).max()
        return torch.where((ids[: len(scores)] == id_).any(), (scores > own).sum() + 1, 0)


NOTHING = Draft([], [])


def copied(ids: Sequence[int], start: int, k: int) -> Draft:
    """The k tokens from position `start` of `ids` on, as a lookup drafts them. At the end of `ids` the copy continues
    with its own tokens, so that a repeating text is drafted to the full length."""
    text = list(ids)
    for i in range(k):
        text.append(text[start + i])
    return Draft(text[len(ids) :], [1.0] * k)


class Chosen(NamedTuple):
    """A drafted token that is still on the device, and what it was taken from: as in `Draft`, of one token.
    `id` and `q` have no dimensions."""

    id: torch.Tensor
    q: torch.Tensor
    probabilities: torch.Tensor | None
    candidates: torch.Tensor


class Drafter(Protocol):
    """Proposes the next tokens. May keep state (a KV cache, an index) between rounds."""

    @property
    def cache_bytes(self) -> int:
        """The size of its KV cache; 0 if it has none."""
        return 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        """Drafts at most k tokens after `ids`, which extends the committed tokens of every earlier call. May draft
        fewer, or none. A chain ends after a token whose q is below `stop_below`, a tree where the probability of the
        path is."""

    def commit(self, length: int) -> None:
        """Rolls back to the first `length` tokens of the last `ids` and its draft: those are committed."""


class NoDrafter(Drafter):
    """Standard decoding: nothing is ever drafted."""

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        return NOTHING

    def commit(self, length: int) -> None:
        pass


def build_none(setup: object) -> NoDrafter:
    return NoDrafter()
