"""Parallel heads draft several tokens from one hidden state of the target, all at once.

Medusa (Cai et al. 2024), Gloeckle et al. 2024; models/heads.py has the heads. Verified exactly: Medusa's "typical
acceptance" is lossy and not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.hidden import HiddenStates
from playground.models.heads import ParallelHeads


class HeadsBranches:
    """Grows `Branches` as deep as there are heads. A head proposes the same behind every branch.

    Args:
        target: the target that the loop runs; it is told to keep its hidden states.
    """

    def __init__(self, heads: ParallelHeads, target: CachedModel) -> None:
        self.draft_ids = heads.draft_ids
        self.deepest = heads.count
        self._heads = heads
        self._hidden = HiddenStates(target)
        self._logits: torch.Tensor  # (heads, draft vocabulary)
        self._place = 0

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        if hidden is None:
            return None
        self._logits = self._heads(torch.tensor(ids[-1], device=hidden.device), hidden[-1])
        self._place = 0
        return self._logits[:1]

    def grow(self, ids: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        self._place += 1
        return self._logits[self._place].expand(len(ids), -1)

    def end(self) -> None:
        pass

    def commit(self) -> None:
        self._hidden.commit()
