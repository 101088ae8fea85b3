"""A KV cache with room to grow.

transformers' `DynamicCache` appends by copying all that it holds, in every layer of every pass. Here new entries are
written after the old ones, and a roll-back only moves the end.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

LEAST, SHARE = 256, 4  # it grows by this many entries, or by one in so many of what it holds


class RoomyLayer(DynamicLayer):
    """`keys` and `values`, [B, G, entries, D], are views of larger buffers. For inference alone: it writes in place."""

    keys: Tensor
    values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self._rooms: tuple[Tensor, ...] = (self.keys, self.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if end > self._rooms[0].shape[2]:
            more = end - start + max(LEAST, end // SHARE)
            self._rooms = tuple(F.pad(held, (0, 0, 0, more)) for held in (self.keys, self.values))
        for room, new in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        if not self.is_initialized:
            return
        end = self.keys.shape[2]
        self._rooms = tuple(room[indices] for room in self._rooms)
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)


def roomy(cache: DynamicCache) -> DynamicCache:
    """The same empty cache, with room in its layers of full attention."""
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
