"""DSpark, DFlash 2 and Domino draft a block of slots at once, then walk them: a slot's logits depend on the tokens
before it.

DeepSeek-AI 2026, "DSpark"; z-lab 2026, "DFlash 2"; Huang et al. 2026, "Domino"; the networks: models/networks,
dspark.py, dflash2.py and domino.py. The walk costs a few small matrix products a token. DSpark's confidence head rates
a token before that token is chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch

from playground.decoding.drafters.base import Captured
from playground.decoding.drafters.hidden import BlockBranches
from playground.decoding.runners.base import Runner, Tensors
from playground.decoding.runners.graphs import Function
from playground.decoding.runners.static import StaticRunner
from playground.decoding.transfer import to_device
from playground.models.networks.dspark import Walked


class WalkedBranches(BlockBranches):
    """Grows `Branches` as deep as the block has slots."""

    def __init__(self, network: Walked, target: Runner) -> None:
        super().__init__(network, target)
        self._network = network
        self._last: int  # token of the sequence
        self._states: torch.Tensor  # (slots, width)
        self._base: torch.Tensor  # (slots, draft vocabulary), before anything is chosen
        self._memory: torch.Tensor  # (rows, values), for the rows of the last logits
        self._slot = 0  # index of the next slot

    @property
    def captured(self) -> Captured | None:
        return self._drafted if isinstance(self._target, StaticRunner) else None

    def read(self, ids: Sequence[int]) -> bool:
        hidden = self._hidden()
        if hidden is None:
            return False
        self._last, self._states = ids[-1], self._block.read(ids[-1], hidden)
        return True

    def _drafted(
        self, key: Hashable, work: Function, passes: Sequence[int], numbers: torch.Tensor, *given: torch.Tensor
    ) -> Tensors:
        run = partial(_walk, self._network, work)
        sent = torch.cat([torch.tensor([self._last]), numbers])
        *found, rated = self._target.run((self._network, key), run, self._states, sent, *given)
        self.confidence = rated if len(rated) else None
        return tuple(found)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        if not self.read(ids):
            return None
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


def _walk(network: Walked, work: Function, states: torch.Tensor, sent: torch.Tensor, *given: torch.Tensor) -> Tensors:
    """Drafts without the host between the slots. Returns what `work` does, see `StaticLayer.drafted`, and the
    confidence of each slot of a chain, (slots,) or (0,) without a head for it. `sent`: the last token, then the
    numbers of `work`."""
    base, slots, rated = network.logits(states), iter(range(network.drafts)), [states.new_zeros(0)]
    memory = network.no_memory(states)

    def grow(ids: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        nonlocal memory
        k, before = next(slots), memory if rows is None else memory.index_select(0, rows)
        slot = network.slot(k, base[k], states[k], ids, before)
        memory = slot.memory
        if slot.confidence is not None:
            rated.append(slot.confidence)
        return slot.logits

    found = work(grow, grow(sent[:1], None), network.draft_ids, sent[1:], *given)
    return *found, torch.cat(rated)
