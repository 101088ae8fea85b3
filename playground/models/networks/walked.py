"""Base of the networks whose slots are drafted in one pass and then walked: what was chosen before counts in a slot."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from transformers import Cache

from playground.models.networks.dflash import DFlash


class Slot(NamedTuple):
    """What is known of a slot once the tokens before it are chosen, in so many rows as there are such branches.

    `logits`: (rows, draft vocabulary); `confidence`: (rows,), None without a head for it; `memory`: (rows, values),
    what the network remembers of each branch.
    """

    logits: Tensor
    confidence: Tensor | None
    memory: Tensor


class Walked(DFlash):
    """Arguments: those of `DFlash`."""

    def drafted(
        self, token: Tensor, hidden: Tensor, cache: Cache, positions: Tensor, masks: Mapping[str, Tensor | None]
    ) -> Tensor:
        """(drafts, width), the states of the slots. Arguments as for `DFlash.drafted`."""
        return self.states(token, hidden, cache, positions, masks)

    def no_memory(self, states: Tensor) -> Tensor:
        """(1, values), before the first slot."""
        return states.new_zeros(1, 0)

    @abstractmethod
    def slot(self, base: Tensor, state: Tensor, ids: Tensor, memory: Tensor) -> Slot:
        """Args:
        base: (draft vocabulary,), the slot's logits before anything is chosen.
        state: (width,), the slot's.
        ids: (rows,), the token before it in each branch.
        memory: (rows, values), of each branch.
        """
