"""DSpark, DFlash 2 and Domino draft a block of slots at once, then walk them: a slot's logits depend on the tokens
before it.

DeepSeek-AI 2026, "DSpark"; z-lab 2026, "DFlash 2"; Huang et al. 2026, "Domino"; the networks: models/networks,
dspark.py, dflash2.py and domino.py. The walk costs a few small matrix products a token. DSpark's confidence head rates
a token before that token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.base import Branches
from playground.decoding.drafters.hidden import HiddenStates
from playground.decoding.runners.base import Runner
from playground.decoding.transfer import to_device
from playground.models.attention import context_of
from playground.models.networks.dspark import Walked


class WalkedBranches(Branches):
    """Grows `Branches` as deep as the block has slots. The cache entries of the sequence last across rounds; those of a
    block are dropped when its draft is done."""

    def __init__(self, network: Walked, target: Runner) -> None:
        self.draft_ids = network.draft_ids
        self.deepest, self.context = network.drafts, context_of(network.config)
        self._network = network
        self._hidden = HiddenStates(target, network.layers)
        self._block = target.block(network)
        self._states: torch.Tensor  # (slots, width)
        self._base: torch.Tensor  # (slots, draft vocabulary), before anything is chosen
        self._memory: torch.Tensor  # (rows, values), for the rows of the last logits
        self._slot = 0  # index of the next slot

    @property
    def cache_bytes(self) -> int:
        return self._block.cache_bytes

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        if hidden is None:
            return None
        self._states = self._block.read(ids[-1], hidden)
        self._base = self._network.logits(self._states)
        self._memory, self._slot = self._network.no_memory(self._states), 0
        return self.grow(ids[-1:], [0])

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        device = self._states.device
        memory = self._memory.index_select(0, to_device(rows, device))
        k, before = self._slot, to_device(ids, device)
        slot = self._network.slot(k, self._base[k], self._states[k], before, memory)
        self._slot += 1
        self._memory, self.confidence = slot.memory, slot.confidence
        return slot.logits

    def end(self) -> None:
        self._block.end()

    def commit(self) -> None:
        self._hidden.commit()

    def rewind(self, length: int) -> int:
        self._hidden.drop()
        return self._block.rewind(length)
