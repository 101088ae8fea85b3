"""Base of the drafters that draft all positions in one pass: a position's logits do not depend on earlier choices."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from playground.decoding.drafters.hidden import HiddenStates
from playground.decoding.runners.base import Runner


class ParallelBranches(ABC):
    """`Branches` as deep as the positions of the pass, over a text of any length where nothing else is said.

    `positions`: (deepest, draft vocabulary), the logits of all positions of the draft.
    """

    context = sys.maxsize
    confidence: torch.Tensor | None = None
    positions: torch.Tensor

    def __init__(self, draft_ids: torch.Tensor, deepest: int) -> None:
        self.draft_ids = draft_ids
        self.deepest = deepest
        self._position = 0

    @property
    def cache_bytes(self) -> int:
        return 0

    @abstractmethod
    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Logits of all positions after the sequence `ids`, (deepest, draft vocabulary); None if it cannot draft
        yet."""

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        positions = self._drafted(ids)
        if positions is None:
            return None
        self.positions = positions
        self._position = 0
        return self.positions[:1]

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        self._position += 1
        return self.positions[self._position].expand(len(ids), -1)

    def end(self) -> None:  # noqa: B027 (most keep nothing)
        pass

    def commit(self) -> None:  # noqa: B027
        pass

    @abstractmethod
    def rewind(self, length: int) -> int:
        """As `Drafter.rewind`."""


class HiddenParallelBranches(ParallelBranches):
    """From the target's hidden states.

    Args:
        target: the target of the decode loop; set to keep its hidden states.
        layers: target layers whose hidden states are read, in the form that `Runner.watch` takes.
    """

    def __init__(self, draft_ids: torch.Tensor, deepest: int, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        super().__init__(draft_ids, deepest)
        self._hidden = HiddenStates(target, layers)

    @abstractmethod
    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        """Logits of all positions, (deepest, draft vocabulary).

        Args:
            ids: the sequence.
            hidden: (positions, layers x width), at the positions not read yet, up to the one before the last token.
        """

    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        return None if hidden is None else self._all(ids, hidden)

    def commit(self) -> None:
        self._hidden.commit()

    def rewind(self, length: int) -> int:
        """Most read the last hidden state alone."""
        self._hidden.drop()
        return length
