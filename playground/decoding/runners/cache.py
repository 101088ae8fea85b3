"""The eager runners' KV cache: the cache of one sequence, with exact roll-back and spare memory.

transformers' `DynamicCache` appends by copying all that it holds, in every layer of every pass. In a `GrowingLayer` new
entries are written after the old ones, and a roll-back only moves the end.

`SequenceCache` wraps transformers' `DynamicCache`. A recurrent state cannot be rolled back: the state of the last
commit is saved, with the inputs of its convolution, and a roll-back restores both and returns the tokens that the model
must be fed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

from playground.decoding.runners.base import CHUNKED, FULL, SLIDING
from playground.errors import PlaygroundError

LEAST, SHARE = 256, 4  # a layer grows by LEAST entries, or by one in SHARE of its entries if that is more


class GrowingLayer(DynamicLayer):
    """A layer of full attention whose `keys` and `values`, [B, G, entries, D], are views of larger buffers. For
    inference alone: it writes in place."""

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


def growing_cache(cache: DynamicCache) -> DynamicCache:
    """Replaces the layers of full attention in an empty cache by `GrowingLayer`s, and returns the cache."""
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class SequenceCache:
    """The cache of one sequence. `states`: the model's argument `past_key_values`."""

    def __init__(self, states: Cache, chunked: bool) -> None:
        self.states = states
        self._layers: list[Any] = states.layers  # of several classes
        self._chunked = chunked
        self._spare = 0  # entries that sliding windows hold beyond those that the model reads
        self._fed: list[int] = []  # tokens fed since the recurrent states were saved
        self._saved: list[torch.Tensor] = []  # empty before the first pass

    @classmethod
    def empty(cls, config: PretrainedConfig) -> SequenceCache:
        try:
            states = growing_cache(DynamicCache(config=config))
        except Exception as error:  # of any kind: a config may hold anything under the keys that only a cache reads
            raise PlaygroundError(
                "The model's config.json describes a KV cache that cannot be made "
                f"({type(error).__name__}: {str(error)[:200]}). Fetch the model again, or choose another."
            ) from error
        states.activate_past_recording()
        # The cache stores chunked attention like a sliding window; only the config distinguishes them.
        return cls(states, CHUNKED in (getattr(config.get_text_config(decoder=True), "layer_types", None) or ()))

    def first_layers(self, count: int) -> SequenceCache:
        """Returns a view of the first `count` layers, which shares their entries."""
        return SequenceCache(Cache(layers=self._layers[:count]), self._chunked)

    @property
    def recurrent(self) -> bool:
        return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self._layers)

    @property
    def takes_trees(self) -> bool:
        """True where all layers have full attention or a sliding window. Chunked attention is Llama 4's, whose other
        layers scale attention by a token's index in the pass, which in a tree is not its position."""
        return self._types() <= {GrowingLayer, DynamicSlidingWindowLayer} and not self._chunked

    @property
    def discards_old(self) -> bool:
        return self._types() != {GrowingLayer}

    @property
    def windows(self) -> dict[str, int]:
        """The sliding window of each layer type, 0 for full attention. Valid for a cache that takes trees."""
        sliding = {layer: layer.sliding_window for layer in self._sliding()}
        return {SLIDING if layer in sliding else FULL: sliding.get(layer, 0) for layer in self._layers}

    @property
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        sliding = self._sliding()
        return {SLIDING if layer in sliding else FULL: (layer.keys, layer.values) for layer in self._layers}

    def share_kv(self) -> None:
        self._spare = 2

    def clear(self) -> None:
        """Drops all entries."""
        for layer in self._layers:
            layer.reset()

    def append(self, ids: Sequence[int]) -> None:
        """Records the tokens that a pass has fed."""
        self._fed += ids
        for layer in self._recurrent_layers():  # several passes may follow before a commit
            _fit(layer)

    def save(self) -> None:
        """Saves the recurrent states, which a roll-back restores."""
        self._fed = []
        self._saved = [state.clone() for state in self._recurrent_states()]

    def gather(self, tail: int, index: torch.Tensor) -> None:
        """Moves those of the last `tail` entries that `index`, (n,), names to the front of the tail. Valid for a cache
        that takes trees."""
        for layer in self._layers:
            for entries in (layer.keys, layer.values):
                end = entries[:, :, -tail:]  # counted from the end: a sliding window lacks the sequence's start
                end[:, :, : len(index)] = end[:, :, index.to(end.device)]  # layers may be spread over GPUs

    def roll_back(self, dropped: int) -> list[int]:
        """Drops the last `dropped` tokens, and entries that have left a sliding window.

        Returns:
            The tokens that the model must be fed again: none unless it is recurrent. `settle` must follow that pass.
        """
        restored = bool(dropped and self._recurrent_layers())
        again = self._fed[: len(self._fed) - dropped] if restored else []
        sliding = self._sliding()
        for layer in sliding:  # a layer returns to the model what its mask covers, however much it holds
            layer.sliding_window += self._spare
        self._crop(dropped + len(again))
        for layer in sliding:
            layer.sliding_window -= self._spare
        if restored:
            for i, state in enumerate(self._recurrent_states()):
                state.copy_(self._saved[i]) if self._saved else state.zero_()
        return again

    def settle(self) -> None:
        """Drops entries that have left a sliding window, after a pass outside a draft."""
        self._crop(0)

    def _crop(self, dropped: int) -> None:
        """Drops the last entries of each layer. `Cache.crop` fails where a layer holds nothing, such as a layer of
        experts alone."""
        for layer in self._layers:
            linear = isinstance(layer, LinearAttentionCacheLayerMixin)
            if any(layer.is_conv_states_initialized.values()) if linear else layer.is_initialized:
                layer.crop(-dropped)
                if linear:
                    _fit(layer)

    def _types(self) -> set[type]:
        return {type(layer) for layer in self._layers}

    def _sliding(self) -> list[DynamicSlidingWindowLayer]:
        if self._chunked:
            return []
        return [layer for layer in self._layers if isinstance(layer, DynamicSlidingWindowLayer)]

    def _recurrent_layers(self) -> list[Any]:
        layers = [layer for layer in self._layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        return [layer for layer in layers if any(layer.is_recurrent_states_initialized.values())]

    def _recurrent_states(self) -> list[torch.Tensor]:
        """Returns the states of the recurrent layers, and the inputs of their convolutions."""
        states = [
            state
            for layer in self._recurrent_layers()
            for state in (*layer.recurrent_states.values(), *layer.conv_states.values())
        ]
        return [state for state in states if state is not None]


def _fit(layer: Any) -> None:
    """Pads or cuts the inputs of a layer's convolutions to the width of its kernels, which some models expect. A prompt
    of one or two tokens does not fill it, and a cache that can be cropped holds more."""
    for i, states in layer.conv_states.items():
        if states is not None:
            width = layer.conv_kernel_size[i]
            layer.conv_states[i] = F.pad(states[..., -width:], (max(0, width - states.shape[-1]), 0))
