"""Medusa's heads draft several tokens from the target's last hidden state, all at once.

Cai et al. 2024 (arXiv 2401.10774); the network: models/networks/medusa.py. The hidden state is that before the text's
last token, which came from it by the target's own head: so head k, from 0, proposes the place k + 1 behind that token.
What they propose is verified exactly: Medusa's "typical acceptance" is lossy and not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.runners.base import Runner
from playground.models.networks.medusa import MedusaHeads


class MedusaBranches(ParallelBranches):
    def __init__(self, heads: MedusaHeads, target: Runner) -> None:
        super().__init__(heads.draft_ids, heads.count, target)
        self._heads = heads

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._heads(hidden[-1])
