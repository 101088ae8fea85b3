"""DFlash drafts a block of tokens at once: one pass over mask tokens that attend to the target's hidden states.

Chen et al. 2026 (arXiv 2602.06036); the network: models/networks/dflash.py. The distribution of each position does not
depend on the tokens chosen before it; samples are verified like any others. A tree over them is DDTree (Ringel and
Romano 2026, arXiv 2604.12989).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.parallel import HiddenParallelBranches
from playground.decoding.runners.base import Runner
from playground.models.decoder import context_of
from playground.models.networks.dflash import DFlash


class DFlashBranches(HiddenParallelBranches):
    """Keeps the cache entries of the sequence across rounds, and drops those of a block when its draft is done."""

    def __init__(self, network: DFlash, target: Runner) -> None:
        super().__init__(network.draft_ids, network.drafts, target, network.layers)
        self.context = context_of(network.config)
        self._block = target.block(network)

    @property
    def cache_bytes(self) -> int:
        return self._block.cache_bytes

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._block.read(ids[-1], hidden)

    def end(self) -> None:
        self._block.end()

    def rewind(self, length: int) -> int:
        super().rewind(length)
        return self._block.rewind(length)
