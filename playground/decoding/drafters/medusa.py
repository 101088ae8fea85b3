"""Medusa's heads draft several tokens from the target's last hidden state, all at once.

Cai et al. 2024 (arXiv 2401.10774); the network: models/networks/medusa.py. The target's own head chose the last token
from the hidden state before it; from the same state head k, counted from 0, proposes the token k + 1 positions after.
Verification is exact; Medusa's lossy "typical acceptance" is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.parallel import HiddenParallelBranches
from playground.decoding.runners.base import Runner
from playground.models.networks.medusa import MedusaHeads


class MedusaBranches(HiddenParallelBranches):
    def __init__(self, heads: MedusaHeads, target: Runner) -> None:
        super().__init__(heads.draft_ids, heads.count, target)
        self._heads = heads

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._heads(hidden[-1])
