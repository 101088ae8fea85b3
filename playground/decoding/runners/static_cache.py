"""A KV cache of fixed length at fixed addresses, so that a captured pass can be replayed over it.

A pass sets the entries that it writes (`Cursor`). A roll-back only moves the end of the sequence: entries after it are
masked, and overwritten by the next pass. Models that need another cache are named by `why_eager`.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GgufConfig, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from playground.decoding.runners.base import CHUNKED, FULL, SLIDING
from playground.models.device import is_spread
from playground.models.sizing import expert_layers

GROWING = ("dynamic", "longrope")


class Cursor:
    """The entries that the current pass writes and reads.

    Attributes:
        length: entries of each layer.
        slots: (n,), the entry of each token of the pass.
        read: how many entries, from the first on, attention reads.
        recent: by sliding window: the entries that such layers read instead, (m,); a window that is missing reads as
            full attention does.
    """

    slots: Tensor
    read: int

    def __init__(self, length: int) -> None:
        self.length = length
        self.recent: dict[int, Tensor] = {}


class FixedLayer(CacheLayerMixin):
    """The keys and values of one layer, (1, heads, entries, head dimension) each. The first pass allocates them. A
    layer with a sliding window holds all entries too, so that it can be rolled back; the masks hide those that have
    left the window.

    `window`: of the layer, in tokens; 0 for full attention.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, cursor: Cursor, window: int) -> None:
        super().__init__()
        self._cursor = cursor
        self.window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, _ = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, self._cursor.length, key_states.shape[-1])
        self.values = value_states.new_zeros(rows, heads, self._cursor.length, value_states.shape[-1])
        self.is_initialized = True

    @property
    def at_fixed_addresses(self) -> bool:
        """True once a kernel can write the entries itself."""
        return self.is_initialized

    @property
    def slots(self) -> Tensor:
        """(n,), the entry of each token of the pass."""
        return self._cursor.slots

    @property
    def visible(self) -> tuple[Tensor, Tensor]:
        """The keys and values that attention reads."""
        if (recent := self._cursor.recent.get(self.window)) is not None:
            return self.keys.index_select(2, recent), self.values.index_select(2, recent)
        return self.keys[:, :, : self._cursor.read], self.values[:, :, : self._cursor.read]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.visible

    # transformers calls these only in a pass without a mask, which is the prefill.

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._cursor.length


class StaticCache:
    """The cache of one model. `states`: the model's argument `past_key_values`.

    Args:
        windows: the sliding window of each layer, in tokens; 0 for full attention.
        length: entries of each layer.
    """

    def __init__(self, windows: Sequence[int], length: int) -> None:
        self.cursor = Cursor(length)
        self.layers = [FixedLayer(self.cursor, window) for window in windows]
        self.states = Cache(layers=[*self.layers])

    def first_layers(self, count: int) -> StaticCache:
        """Returns a view of the first `count` layers, which shares their entries."""
        view = StaticCache((), 0)
        view.cursor, view.layers = self.cursor, self.layers[:count]
        view.states = Cache(layers=[*view.layers])
        return view

    @property
    def windows(self) -> dict[str, int]:
        """The sliding window of each layer type, in tokens; 0 for full attention."""
        return {SLIDING if layer.window else FULL: layer.window for layer in self.layers}

    @property
    def last(self) -> dict[str, tuple[Tensor, Tensor]]:
        """All keys and values of the last layer of each type."""
        return {SLIDING if layer.window else FULL: (layer.keys, layer.values) for layer in self.layers}

    def shared_kv(self, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Implements `Runner.shared_kv` for the first `length` entries."""
        starts = {kind: max(0, length - window - 1) if window else 0 for kind, window in self.windows.items()}
        seen = {kind: slice(start, length) for kind, start in starts.items()}
        return {kind: (keys[:, :, seen[kind]], values[:, :, seen[kind]]) for kind, (keys, values) in self.last.items()}

    @property
    def allocated(self) -> bool:
        """True once every layer has had a pass."""
        return all(layer.is_initialized for layer in self.layers)

    @property
    def tensors(self) -> list[Tensor]:
        """The keys and values of the layers that have had a pass, which allocates them."""
        return [entries for layer in self.layers if layer.is_initialized for entries in (layer.keys, layer.values)]

    def clear(self) -> None:
        """Sets all entries to 0. NaN would pass through the mask: 0 times NaN is NaN."""
        for entries in self.tensors:
            entries.zero_()

    def copied(self, length: int) -> list[Tensor]:
        """Returns copies of the first `length` entries, for `paste`."""
        return [entries[:, :, :length].clone() for entries in self.tensors]

    def paste(self, copied: Sequence[Tensor]) -> None:
        """Sets the first entries to copies of them."""
        for entries, copy in zip(self.tensors, copied, strict=True):
            entries[:, :, : copy.shape[2]] = copy

    def resize(self, length: int) -> None:
        """Gives every layer `length` entries, and preserves those that fit."""
        kept = min(length, self.cursor.length)
        self.cursor.length = length
        for layer in self.layers:
            if layer.is_initialized:
                old = layer.keys, layer.values
                layer.lazy_initialization(*old)
                for new, entries in zip((layer.keys, layer.values), old, strict=True):
                    new[:, :, :kept] = entries[:, :, :kept]

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copies the entries `source` to the entries `to`, both (n,) indices."""
        for entries in self.tensors:
            entries.index_copy_(2, to, entries.index_select(2, source))


def why_eager(model: PreTrainedModel) -> str:
    """Returns the reason why a model cannot run over a static cache; "" if it can."""
    config = model.config.get_text_config(decoder=True)
    quantisation = getattr(model.config, "quantization_config", None)
    if reason := why_growing(model.config):
        return reason
    if is_spread(model):
        return "its layers lie on several GPUs"
    if quantisation is not None and not isinstance(quantisation, GgufConfig):
        return "its weights are quantised"
    if not model._can_compile_fullgraph or getattr(config, "alibi", False):
        return "transformers cannot compile this architecture"
    if expert_layers(model) and not groups_on_device(model.device, model.dtype):
        return "it is a mixture of experts, which waits for the host except in bfloat16 on SM90 and SM100"
    if "position_ids" not in signature(model.forward).parameters:
        return "it takes no positions"
    return ""


def groups_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """True where transformers' experts (`grouped_mm`) do not wait for the device: elsewhere torch reads on the host how
    many tokens each expert gets."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def why_growing(config: PretrainedConfig) -> str:
    """Returns the reason why layers of this config need a cache that grows; "" if they do not."""
    text = config.get_text_config(decoder=True)
    if CHUNKED in (getattr(text, "layer_types", None) or ()):
        return "it has chunked attention"
    if not {type(layer) for layer in DynamicCache(config=config).layers} <= {DynamicLayer, DynamicSlidingWindowLayer}:
        return "it has layers other than attention to all tokens or a sliding window, such as recurrent states"
    if has_growing_rope(text):
        return "its rotary positions depend on the length of the text"
    return ""


def windows_of(config: PretrainedConfig) -> list[int]:
    """Returns the sliding window, in tokens, of each layer that has a cache; 0 for full attention."""
    return [getattr(layer, "sliding_window", 0) for layer in DynamicCache(config=config).layers]


def has_growing_rope(config: PretrainedConfig) -> bool:
    """True where rotary frequencies, which some models have for each layer type, depend on the length of the
    sequence."""
    rope = getattr(config, "rope_parameters", None) or {}
    return any(part.get("rope_type") in GROWING for part in (rope, *rope.values()) if isinstance(part, dict))
