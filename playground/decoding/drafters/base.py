"""What the loop asks of a drafter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler
from playground.decoding.transfer import to_device


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
        confidences: for each token what a head trained for it said of its chance to be accepted; None without one.
        forced: how many of its first tokens a grammar forces.
        past_context: of a draft without tokens, the length of the drafter's context in tokens, where the text has
            reached it; else None.
    """

    ids: list[int]
    q: Sequence[float | None]
    probabilities: torch.Tensor | None = None
    tree: list[int] | None = None
    candidates: Sequence[torch.Tensor] | None = None
    draft_ids: torch.Tensor | None = None
    confidences: Sequence[float] | None = None
    forced: int = 0
    past_context: int | None = None

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

    def only(self, kept: Sequence[int]) -> Draft:
        """The tokens at these indices, in order. The parent of each must be among them."""
        if len(kept) == len(self.ids):
            return self
        index = {-1: -1} | {i: at for at, i in enumerate(kept)}
        rows, q = torch.tensor(list(kept), dtype=torch.long), self.probabilities
        return replace(
            self,
            ids=[self.ids[i] for i in kept],
            q=[self.q[i] for i in kept],
            probabilities=None if q is None else q.index_select(0, to_device(rows, q.device)),
            tree=None if self.tree is None else [index[self.tree[i]] for i in kept],
            candidates=None if self.candidates is None else [self.candidates[i] for i in kept],
            confidences=None if self.confidences is None else [self.confidences[i] for i in kept],
            forced=sum(i < self.forced for i in kept),
        )

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


def past(context: int) -> Draft:
    """Nothing, since the text has reached the end of the drafter's context."""
    return Draft([], [], past_context=context)


def copied(ids: Sequence[int], start: int, k: int) -> Draft:
    """The k tokens from position `start` of `ids` on, as a lookup drafts them. At the end of `ids` the copy continues
    with its own tokens, so that a repeating text is drafted to the full length."""
    text = list(ids)
    for i in range(k):
        text.append(text[start + i])
    return Draft(text[len(ids) :], [1.0] * k)


class Chosen(NamedTuple):
    """A drafted token that is still on the device, and what it was taken from: as in `Draft`, of one token.
    `id`, `q` and `confidence` have no dimensions."""

    id: torch.Tensor
    q: torch.Tensor
    probabilities: torch.Tensor | None
    candidates: torch.Tensor
    confidence: torch.Tensor | None = None


class Drafter(Protocol):
    """Proposes the next tokens. May keep state (a KV cache, an index) between rounds."""

    @property
    def cache_bytes(self) -> int:
        """The size of its KV cache; 0 if it has none."""
        return 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        """Drafts at most k tokens after `ids`, which extends the committed tokens of every earlier call. May draft
        fewer, or none. A chain ends after a token whose q is below `stop_below` or, where a head was trained to say
        so, before one whose confidence is; a tree where the probability of the path is. `sampler` is that of the
        request. Draft tokens that are sampled are drawn from it and from no other, or they would not be independent of
        what the target draws."""

    def commit(self, length: int) -> None:
        """Rolls back to the first `length` tokens of the last `ids` and its draft: those are committed."""

    def rewind(self, length: int) -> int:
        """Rolls back to the first `length` tokens of the text, of which the first committed ones may go on otherwise: a
        conversation's next turn. Returns how many of them the target may keep, since a drafter that reads its hidden
        states needs those that it lacks; 0 if there is no way back."""
        return 0


def rewound(drafters: Iterable[Drafter], length: int) -> int:
    """Rewinds all of them, of which at most one reads hidden states; returns how many tokens the target may keep."""
    return min(drafter.rewind(length) for drafter in drafters)


def rewound_model(model: Runner, length: int) -> int:
    """Rolls back the cache of a model that reads nothing but the text; as `Drafter.rewind`."""
    if model.length > length and model.discards_old:
        return 0
    model.commit(min(model.length, length))
    return length


class NoDrafter(Drafter):
    """Standard decoding: nothing is ever drafted."""

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        return NOTHING

    def commit(self, length: int) -> None:
        pass

    def rewind(self, length: int) -> int:
        return length


def build_none(setup: object) -> NoDrafter:
    return NoDrafter()
