"""Parallel heads draft several tokens from one hidden state of the target, all at once.

Medusa (Cai et al. 2024), Gloeckle et al. 2024; models/heads.py has the heads. No tree, and verified exactly: Medusa's
"typical acceptance" is lossy and not used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.base import NOTHING, Draft, draft_tokens
from playground.decoding.drafters.hidden import DraftChoice, HiddenStates
from playground.decoding.sampling import Sampler
from playground.models.heads import ParallelHeads


class HeadsDrafter:
    """Drafts as many tokens as there are heads at most.

    Args:
        target: the target that the loop runs; it is told to keep its hidden states.
        eos_ids: tokens behind which drafting is pointless.
    """

    def __init__(self, heads: ParallelHeads, target: CachedModel, sampler: Sampler, eos_ids: Collection[int]) -> None:
        self._heads = heads
        self._hidden = HiddenStates(target)
        self._choose = DraftChoice(heads.draft_ids, target.vocab_size, sampler)
        self._eos_ids = eos_ids

    @torch.inference_mode()
    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        hidden = self._hidden.take() if k > 0 else None
        if hidden is None:
            return NOTHING
        rows = self._heads(torch.tensor(ids[-1], device=hidden.device), hidden[-1])[:k]
        return draft_tokens(
            ids, len(rows), stop_below, self._eos_ids, lambda text: self._choose(text, rows[len(text) - len(ids)])
        )

    def commit(self, length: int) -> None:
        self._hidden.commit()
