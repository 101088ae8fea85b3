"""The interface between the decode loop and a drafter: `Drafter`, and the `Draft` that it proposes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from playground.decoding.runners.base import Runner
from playground.decoding.runners.native import Wanted
from playground.decoding.sampling import Sampler
from playground.decoding.transfer import to_device


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain of them, or a tree whose branches are alternatives.

    Attributes:
        ids: k token ids.
        q: the drafter's own probability of each token, for display; None for a token that it did not draft.
        probabilities: (k, vocabulary), the distributions that the ids were sampled from. None where they were
            chosen instead (argmax, lookup).
        tree: for each token the index of its parent, which comes before it, or -1 after the committed
            tokens. None is a chain. Siblings that were sampled were drawn in their order, without replacement, and each
            has the distribution that the first was drawn from.
        candidates: for each token the (draft vocabulary,) scores that it was taken from; None where nothing was scored.
        draft_ids: (draft vocabulary,), the token id of each score; None where they are 0, 1, 2, …
        confidences: for each token the chance of acceptance that a head trained for this gave; None without one.
        forced: how many of the first tokens a grammar forces.
        past_context: the length of the drafter's context in tokens, if the draft is empty because the text has reached
            it; else None.
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
        """The parent of each token, -1 after the committed tokens; defined for a chain too."""
        return range(-1, len(self.ids) - 1) if self.tree is None else self.tree

    @property
    def depths(self) -> list[int]:
        """The number of draft tokens up to and including each token: 0 for the last committed token, then the k of the
        draft."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths

    @property
    def depth(self) -> int:
        """The number of tokens in the longest branch."""
        return max(self.depths)

    def path(self, i: int) -> list[int]:
        """Returns the indices of the tokens on the branch that ends at token i; empty for -1."""
        indices = []
        while i >= 0:
            indices.append(i)
            i = self.parents[i]
        return indices[::-1]

    def only(self, kept: Sequence[int]) -> Draft:
        """Returns a draft of the tokens at these indices, in order. The parent of each must be among them."""
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


def rank_among(scores: torch.Tensor, ids: torch.Tensor, id_: torch.Tensor) -> torch.Tensor:
    """Returns the rank of token `id_`, (1,), by the (draft vocabulary,) scores of the tokens `ids`, as a (1,) tensor: 1
    is the best, 0 means not among them, or at -inf."""
    own = scores.masked_fill(ids != id_, float("-inf")).max()
    return torch.where(own.isneginf(), 0, (scores > own).sum() + 1)[None]


NOTHING = Draft([], [])


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the common prefix of two sequences."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def past(context: int) -> Draft:
    """Returns an empty draft that says that the text has reached the end of the drafter's context."""
    return Draft([], [], past_context=context)


def copied(ids: Sequence[int], start: int, k: int) -> Draft:
    """Drafts the k tokens from position `start` of `ids` on, as a lookup does. At the end of `ids` the copy continues
    with its own tokens, so that a repeating text is drafted to the full length."""
    text = list(ids)
    for i in range(k):
        text.append(text[start + i])
    return Draft(text[len(ids) :], [1.0] * k)


class Chosen(NamedTuple):
    """n drafted tokens, still on the device. `ids`: (n,); `read`: (n, 2), each id with its q, in float32, which holds
    every id below 2^24; `candidates`: (n, draft vocabulary); `probabilities`: (n, vocabulary). `Draft` explains the
    fields."""

    ids: torch.Tensor
    read: torch.Tensor
    candidates: torch.Tensor
    probabilities: torch.Tensor | None = None


Grow = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
Captured = Callable[..., tuple[torch.Tensor, ...]]


class Drafter(Protocol):
    """Proposes the next tokens. It may have state (a KV cache, an index) that lasts across rounds."""

    @property
    def cache_bytes(self) -> int:
        """The size of the drafter's KV cache in bytes; 0 if it has none."""
        return 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        """Drafts at most k tokens after `ids`, which extends the committed tokens of every earlier call. May draft
        fewer, or none. A tree, and a chain that goes by costs, ends where the probability of the path is below
        `stop_below`; another chain after a token whose q is, or before a token whose confidence is where the drafter
        has a confidence head. `sampler` is the request's. Draft tokens must be sampled with it and no other: only so
        are they independent of the target's samples."""

    def commit(self, length: int) -> None:
        """Rolls back to the first `length` tokens of the last `ids` and its draft, which are now committed. By default
        nothing: a lookup reads only what was accepted."""
        return None

    def prepare(self) -> None:
        """Prepares the next draft, after other lanes may have used the same models. Must be called where nothing is
        timed; a draft that was not prepared is only slower."""
        return None

    def rewind(self, length: int) -> int:
        """Rolls back to the first `length` tokens of the text, for a conversation's next turn. Returns how many tokens
        the target may reuse: a drafter that reads the target's hidden states needs those that it has not read. 0 if it
        cannot roll back."""
        return 0


class Branches(Protocol):
    """Gives logits for drafts, one position after another. The defaults are those of a network without limits.

    Attributes:
        draft_ids: (draft vocabulary,), the token id of each column of the logits. They may change from one draft to the
            next.
        deepest: the largest number of positions in a draft.
        context: the longest text, in tokens, that the network has positions for, the draft included.
        confidence: (rows,), for each row of the last call's logits the chance that a token chosen from it is accepted,
            by a head trained for that; None without one.
    """

    draft_ids: torch.Tensor
    deepest: int = sys.maxsize
    context: int = sys.maxsize
    confidence: torch.Tensor | None = None

    @property
    def cache_bytes(self) -> int:
        """The size of the network's own KV cache in bytes."""
        return 0

    @property
    def captured(self) -> Captured | None:
        """Runs a whole draft after `read` as one piece of captured work, see `StaticLayer.drafted`; None where drafts
        are grown."""
        return None

    def read(self, ids: Sequence[int]) -> bool:
        """Reads the sequence `ids` for `captured`, which gives the logits after it; False if nothing can be drafted
        yet."""
        return False

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Starts a draft: returns the logits after the sequence `ids`, (1, draft vocabulary); None if nothing can be
        drafted yet."""

    def drafted(self, ids: Sequence[int], wanted: Wanted) -> Draft | None:
        """Returns a whole draft of the likeliest tokens; None where it must be grown."""
        return None

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Returns the logits after the draft tokens `ids`, (tokens, draft vocabulary). `ids`: numbers, or a (tokens,)
        tensor on the device. `rows`: for each token, the row of the last call's logits that it was chosen from."""

    def end(self) -> None:
        """Ends the draft."""
        return None

    def commit(self) -> None:
        """Ends a round. Must be called once a round while the text is shorter than `context`, after the target's own
        roll-back."""
        return None

    def prepare(self) -> None:
        """Implements `Drafter.prepare`."""
        return None

    def rewind(self, length: int) -> int:
        """Implements `Drafter.rewind`."""


class ModelBranches(Branches):
    """The base of those that a language model grows, which reads nothing but the text. Its KV cache lasts across
    rounds.

    Args:
        vocab_size: the target's. Two models with one tokenizer may pad their embeddings to different sizes: the model's
            surplus ids are never drafted, and ids that it lacks have q = 0.
    """

    def __init__(self, model: Runner, vocab_size: int) -> None:
        model.prepare()
        self.draft_ids = torch.arange(min(model.vocab_size, vocab_size), device=model.device)
        self.context = model.context_limit
        self._model = model

    @property
    def cache_bytes(self) -> int:
        return self._model.cache_bytes

    def prepare(self) -> None:
        self._model.prepare()

    def rewind(self, length: int) -> int:
        if self._model.length > length and self._model.discards_old:
            return 0
        self._model.commit(min(self._model.length, length))
        self._model.prepare()
        return length


class NoDrafter(Drafter):
    """Standard decoding: nothing is ever drafted."""

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        return NOTHING

    def rewind(self, length: int) -> int:
        return length


def build_none(setup: object) -> NoDrafter:
    """Builds a drafter that drafts nothing. It also serves the method grammar: `composite.after_forced` adds the forced
    tokens to every method."""
    return NoDrafter()
