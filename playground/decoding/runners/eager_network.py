"""The eager runners of layers and block networks that draft: plain calls, on a cache that grows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from playground.decoding.runners.base import BlockNetwork, RecursiveLayer
from playground.decoding.runners.buffers import additive
from playground.decoding.runners.cache import growing_cache
from playground.decoding.transfer import to_device
from playground.models.sizing import cache_bytes


class EagerLayer:
    """Runs any layer that drafts recursively; `LayerRunner` documents the members."""

    def __init__(self, layer: RecursiveLayer) -> None:
        self._layer = layer
        self._cache = growing_cache(layer.new_cache())
        self._cache.activate_past_recording()
        self._entries = 0  # of the text; entry i is for the token at position i + 1 and the hidden state at position i
        self._window = getattr(self._cache.layers[0], "sliding_window", None)
        self._out: Tensor  # (1, rows, width), the output of the last pass
        self._sees: Tensor  # (rows, draft entries), which of the draft's entries are ancestors of each row
        self._positions: Tensor  # (entries,), positions of text and draft
        self._depth = 0  # depth of the draft

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def read(self, ids: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self._out = self._layer(to_device([ids], hidden.device), hidden[None], self._cache)[:, -1:]
        self._entries += len(ids)
        self._sees = torch.zeros(1, 0, dtype=torch.bool)
        self._depth = 0
        self._positions = torch.arange(self._entries)
        return self._layer.logits(self._out[0]), self._out[0]

    def grow(self, ids: Sequence[int] | Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        device, n = self._out.device, len(ids)
        self._sees = torch.cat([self._sees.index_select(0, torch.tensor(rows)), torch.eye(n, dtype=torch.bool)], dim=1)
        self._depth += 1
        position = self._entries - 1 + self._depth  # position of all new entries
        self._positions = torch.cat([self._positions, torch.full((n,), position)])
        sees = torch.cat([torch.ones(n, self._entries, dtype=torch.bool), self._sees], dim=1)
        if self._window:
            sees = (sees & (position - self._positions < self._window))[:, -(self._window - 1 + n) :]
        mask = to_device(additive(sees, self._out.dtype), device)
        positions = torch.full((1, n), position, device=device)
        tokens, hidden = to_device(ids, device)[None], self._out.index_select(1, to_device(rows, device))
        self._out = self._layer(tokens, hidden, self._cache, positions, mask)
        return self._layer.logits(self._out[0]), self._out[0]

    def end(self) -> None:
        self._cache.crop(-self._sees.shape[1])

    def rewind(self, entries: int) -> int:
        if self._window or entries < 1:
            return 0
        self._cache.crop(entries - self._entries)
        self._entries = entries
        return entries


class EagerBlock:
    """Runs any network that drafts a block in one pass; `BlockRunner` documents the members."""

    def __init__(self, network: BlockNetwork) -> None:
        self._network = network
        self._cache = network.new_cache()

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def read(self, token: int, hidden: Tensor) -> Tensor:
        return self._network(token, hidden, self._cache)

    def end(self) -> None:
        self._cache.crop(-self._network.block_size)

    def rewind(self, entries: int) -> int:
        if any(getattr(layer, "sliding_window", None) for layer in self._cache.layers):
            return 0
        held = int(self._cache.get_seq_length())
        kept = min(entries, held)
        if held:
            self._cache.crop(kept - held)
        return kept
