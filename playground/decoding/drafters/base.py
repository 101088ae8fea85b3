"""What the loop asks of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain of them, or a tree whose branches are alternatives.

    Attributes:
        ids: k token ids.
        q: the drafter's own probability of each, to be shown.
        probabilities: (k, vocabulary), the distributions that the ids were drawn from. None where they were not drawn
            but chosen (argmax, lookup).
        tree: for each token the index of its parent, which comes before it, or -1 where it follows the committed text.
            None is a chain. The tokens of a tree are chosen, never sampled.
        candidates: for each token the (draft vocabulary,) scores that it was taken from; None where nothing was scored.
        draft_ids: (draft vocabulary,), the token ids that those stand for; None where they are 0, 1, 2, …
    """

    ids: list[int]
    q: list[float]
    probabilities: torch.Tensor | None = None
    tree: list[int] | None = None
    candidates: Sequence[torch.Tensor] | None = None
    draft_ids: torch.Tensor | None = None

    @property
    def parents(self) -> Sequence[int]:
        """The same as `tree`, for a chain as well."""
        return range(-1, len(self.ids) - 1) if self.tree is None else self.tree

    @property
    def depth(self) -> int:
        """The tokens of its longest branch."""
        depths = [0]  # of the text, then of each token
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return max(depths)

    def path(self, i: int) -> list[int]:
        """The indices of the tokens from the text's end to token i; none for -1."""
        indices = []
        while i >= 0:
            indices.append(i)
            i = self.parents[i]
        return indices[::-1]

    def rank(self, i: int, id_: int) -> int | None:
        """Where a token stands among the candidates for the place of token i, 1 being the best; 0 where it is none of
        them, and None where nothing was scored."""
        if self.candidates is None:
            return None
        scores = self.candidates[i]
        slots = [id_] if self.draft_ids is None else (self.draft_ids == id_).nonzero()[:, 0].tolist()
        if not slots or slots[0] >= len(scores):
            return 0
        return int((scores > scores[slots[0]]).sum()) + 1


NOTHING = Draft([], [])


def copied(ids: Sequence[int], start: int, k: int) -> Draft:
    """The k tokens from place `start` of the text on, as a lookup drafts them. Where they reach the text's end they go
    on with themselves, so that a loop is drafted as long as asked."""
    text = list(ids)
    for i in range(k):
        text.append(text[start + i])
    return Draft(text[len(ids) :], [1.0] * k)


class Choice(NamedTuple):
    """A drafted token, and what it was taken from: as in `Draft`, of one token."""

    id: int
    q: float
    probabilities: torch.Tensor | None
    candidates: torch.Tensor


def draft_tokens(
    ids: Sequence[int],
    k: int,
    stop_below: float,
    eos_ids: Collection[int],
    next_token: Callable[[list[int]], Choice],
    draft_ids: torch.Tensor | None = None,
) -> Draft:
    """Drafts token by token: at most k >= 1, and none behind an end of text or a q under `stop_below`.

    `next_token` is given the text so far.
    """
    text = list(ids)
    choices: list[Choice] = []
    while len(choices) < k:
        choice = next_token(text)
        text.append(choice.id)
        choices.append(choice)
        if choice.id in eos_ids or choice.q < stop_below:
            break
    drafted, q, probabilities, candidates = zip(*choices, strict=True)
    drawn = None if probabilities[0] is None else torch.stack(probabilities)
    return Draft(list(drafted), list(q), drawn, candidates=candidates, draft_ids=draft_ids)


class Drafter(Protocol):
    """Proposes how a text goes on. Keeps what state it likes (a KV cache, an index) between rounds."""

    @property
    def cache_bytes(self) -> int:
        """The size of its KV cache; 0 if it has none."""
        return 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        """Drafts at most k tokens behind the text `ids`, which begins with every text given before; fewer, or none,
        where it knows no better. A chain ends behind a token whose q is under `stop_below`, a tree where the chance to
        get there is."""

    def commit(self, length: int) -> None:
        """Learns that of the last text and its draft only the first `length` tokens stand."""


class NoDrafter(Drafter):
    """Standard decoding: nothing is ever drafted."""

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        return NOTHING

    def commit(self, length: int) -> None:
        pass


def build_none(setup: object) -> NoDrafter:
    return NoDrafter()
