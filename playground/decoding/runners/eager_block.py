"""The eager runner of a network that drafts a block in one pass: plain calls, on a cache that grows."""

from __future__ import annotations

from torch import Tensor

from playground.decoding.runners.base import BlockNetwork
from playground.models.footprint import cache_bytes


class EagerBlock:
    """Runs any such network; `BlockRunner` documents the members."""

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
