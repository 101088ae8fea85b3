"""DFlash drafts a block of tokens at once: one pass over mask tokens that see the target's hidden states.

Chen et al. 2026 (arXiv 2602.06036); the network: models/networks/dflash.py. Each place has a distribution of its own,
which knows nothing of what was chosen before it; draws from them are verified as any other. A tree over them is DDTree
(Ringel and Romano 2026, arXiv 2604.12989).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.runners.base import Runner
from playground.models.footprint import cache_bytes
from playground.models.networks.dflash import DFlash


class DFlashBranches(ParallelBranches):
    """Keeps the entries of the text across rounds, and drops a block's own when its draft is done."""

    def __init__(self, network: DFlash, target: Runner) -> None:
        super().__init__(network.draft_ids, network.block_size - 1, target, network.layers)
        self._network = network
        self._cache = network.new_cache()

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._network(ids[-1], hidden, self._cache)

    def end(self) -> None:
        self._cache.crop(-self._network.block_size)
