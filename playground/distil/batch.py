"""A cache for a target that decodes many sequences at once: room is taken once.

transformers' own cache appends by copying, which costs much with many sequences at once.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

ROOM = 128  # positions by which a layer grows


class RoomyLayer(DynamicLayer):
    """Keys and values [B, G, positions, D], written into room taken beforehand."""

    room: tuple[Tensor, ...]  # of keys and of values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room, self.used = (key_states[:, :, :0], value_states[:, :, :0]), 0
        end = self.used + key_states.shape[2]
        if end > self.room[0].shape[2]:
            grow = end + ROOM - self.used
            self.room = tuple(F.pad(held[:, :, : self.used], (0, 0, 0, grow)) for held in self.room)
        for held, new in zip(self.room, (key_states, value_states), strict=True):
            held[:, :, self.used : end] = new
        self.used = end
        self.keys, self.values = (held[:, :, :end] for held in self.room)
        return self.keys, self.values

    def keep_rows(self, rows: Tensor) -> None:
        self.room = tuple(held[rows] for held in self.room)
        self.keys, self.values = (held[:, :, : self.used] for held in self.room)


def roomy_cache(model: PreTrainedModel) -> DynamicCache:
    """A cache for the model whose full-attention layers have room."""
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def keep_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Drop the sequences that are done."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.keep_rows(rows)
        else:
            layer.batch_select_indices(rows)  # type: ignore[union-attr]  # an attention layer's
