"""What drafters share that draft all places in one pass: whatever is chosen at one, the next are the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from playground.decoding.drafters.hidden import HiddenStates
from playground.decoding.runners.base import Runner


class ParallelBranches(ABC):
    """Grows `Branches` as deep as there are places in the pass.

    Args:
        target: the target that the loop runs; it is told to keep its hidden states.
        layers: of the target, whose hidden states are read, as `Runner.watch` takes them.
    """

    cache_bytes = 0

    def __init__(self, draft_ids: torch.Tensor, deepest: int, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        self.draft_ids = draft_ids
        self.deepest = deepest
        self._hidden = HiddenStates(target, layers)
        self._logits: torch.Tensor  # (deepest, draft vocabulary)
        self._place = 0

    @abstractmethod
    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        """Logits of every place, (deepest, draft vocabulary).

        Args:
            hidden: (places, layers x width), of the text's places that were not read yet; the last is that before the
                text's last token.
        """

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        if hidden is None:
            return None
        self._logits = self._all(ids, hidden)
        self._place = 0
        return self._logits[:1]

    def grow(self, ids: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        self._place += 1
        return self._logits[self._place].expand(len(ids), -1)

    def end(self) -> None:  # noqa: B027 (most keep nothing)
        pass

    def commit(self) -> None:
        self._hidden.commit()
