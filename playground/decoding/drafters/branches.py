"""The protocol of networks that draft step by step, and the drafters over it: a chain here, trees in tree.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pkgutil import resolve_name
from typing import Protocol

import torch

from playground.decoding.drafters.base import NOTHING, Choice, Draft, Drafter, draft_tokens
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.hidden import DraftChoice
from playground.drafting_methods import METHODS


class Branches(Protocol):
    """Gives logits for drafts, one position after another.

    Attributes:
        draft_ids: (draft vocabulary,), the token id of each column of its logits. The vocabulary may grow from one
            draft to the next.
        deepest: the most positions that it can draft.
    """

    draft_ids: torch.Tensor
    deepest: int

    @property
    def cache_bytes(self) -> int:
        """The size of its KV cache."""

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Starts a draft: logits after the sequence `ids`, (1, draft vocabulary); None if it cannot draft yet."""

    def grow(self, ids: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """Logits after the draft tokens `ids`, (tokens, draft vocabulary). `rows`: for each token, the row of the last
        call's logits that it was chosen from."""

    def end(self) -> None:
        """The draft is done."""

    def commit(self) -> None:
        """Call once a round, after the target's own roll-back."""


class BranchesDrafter(Drafter, ABC):
    """Args:
    eos_ids: tokens after which drafting is pointless.
    """

    def __init__(self, branches: Branches, eos_ids: Collection[int]) -> None:
        self._branches = branches
        self._eos_ids = eos_ids

    @property
    def cache_bytes(self) -> int:
        return self._branches.cache_bytes

    @torch.inference_mode()
    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        k = min(k, self._branches.deepest)
        logits = self._branches.root(ids) if k > 0 else None
        if logits is None:
            return NOTHING
        draft = self._grown(ids, k, stop_below, logits)
        self._branches.end()
        return draft

    @abstractmethod
    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor) -> Draft:
        """The draft, at most k deep. `logits`: those after the sequence."""

    def commit(self, length: int) -> None:
        self._branches.commit()


class ChainDrafter(BranchesDrafter):
    def __init__(self, branches: Branches, choose: DraftChoice, eos_ids: Collection[int]) -> None:
        super().__init__(branches, eos_ids)
        self._choose = choose

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor) -> Draft:
        def next_token(longer: list[int]) -> Choice:
            nonlocal logits
            if len(longer) > len(ids):
                logits = self._branches.grow(longer[-1:], [0])
            return self._choose(longer, logits[0], self._branches.draft_ids)

        return draft_tokens(ids, k, stop_below, self._eos_ids, next_token, self._branches.draft_ids)


def branches_of(setup: Setup) -> Branches:
    """What grows drafts with the network that was loaded for the lane."""
    kind = setup.models.pair.drafts_by(setup.lane.drafter)
    assert kind, "a network is loaded for a kind of weights that the pair names"
    return resolve_name(METHODS[kind].branches)(setup.network, setup.target)


def build_chain(setup: Setup) -> ChainDrafter:
    choose = DraftChoice(setup.target.vocab_size, setup.sampler)
    return ChainDrafter(branches_of(setup), choose, setup.eos_ids)
