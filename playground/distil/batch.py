"""A target that decodes many sequences at once: room for the cache is taken once, grouped heads are not copied.

transformers' own cache appends by copying, and its attention repeats the key heads of grouped-query models; with many
sequences at once on a CPU both cost much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

GROUPED = "grouped_heads"
PLAIN_ATTENTION = {"llama", "mistral", "qwen2", "qwen3", "granite", "olmo2"}  # nothing but a mask and a scale
ROOM = 128  # positions by which a layer grows


def grouped_heads(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
) -> tuple[Tensor, None]:
    """Attention whose query heads of one group go through as so many positions: [B, H, 1, D] as [B, G, H / G, D]."""
    rows, heads, places, width = query.shape
    options = {"attn_mask": attention_mask, "scale": kwargs.get("scaling")}
    if places == 1:
        grouped = query.view(rows, key.shape[1], -1, width)
        return F.scaled_dot_product_attention(grouped, key, value, **options).reshape(rows, 1, heads, width), None
    causal = attention_mask is None  # transformers makes no mask where a plain causal one would do
    out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True, **options)
    return out.transpose(1, 2), None


AttentionInterface.register(GROUPED, grouped_heads)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


class RoomyLayer(DynamicLayer):
    """Keys and values [B, G, positions, D], written into room taken beforehand."""

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


@contextmanager
def quicker(model: PreTrainedModel) -> Iterator[None]:
    """Lets the model's attention take grouped heads as they are, where its attention is a plain one on a CPU."""
    if model.device.type != "cpu" or model.config.model_type not in PLAIN_ATTENTION:
        yield
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(GROUPED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # learning has no use for it, and a drafter copies its target's config


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
            layer.batch_select_indices(rows)
