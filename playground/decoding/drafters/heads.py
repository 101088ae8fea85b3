"""Parallel heads draft several tokens from one hidden state of the target, all at once.

Medusa (Cai et al. 2024), Gloeckle et al. 2024; the network: models/networks/heads.py. Verification is exact; Medusa's
lossy "typical acceptance" is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.hidden import TextVocabulary
from playground.decoding.drafters.parallel import HiddenParallelBranches
from playground.decoding.runners.base import Runner
from playground.decoding.transfer import to_device
from playground.models.networks.heads import ParallelHeads


class HeadsBranches(HiddenParallelBranches):
    def __init__(self, heads: ParallelHeads, target: Runner) -> None:
        super().__init__(heads.draft_ids, heads.count, target)
        self._heads = heads
        self._vocabulary = TextVocabulary(heads)

    def rewind(self, length: int) -> int:
        self._vocabulary.clear()
        return super().rewind(length)

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        self.draft_ids = self._vocabulary.read(ids)
        return self._vocabulary.logits(self._heads(to_device(ids[-1:], hidden.device)[0], hidden[-1]))
