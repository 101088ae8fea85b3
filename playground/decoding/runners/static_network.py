"""Base of the static runners of networks that draft from a static model's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor

from playground.decoding.runners.buffers import MOST
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static_cache import Cursor, StaticCache


class StaticNetwork(ABC):
    """A network with its static cache, its buffers and its graphs. Outlives the runs; one runner uses it at a time.

    Args:
        layers: of its cache.
        ahead: entries that a draft takes at most.
        target: of the model's cache, which says how long a text can be.
        graphs: the model's.
    """

    _entries: Tensor  # 0, 1, 2, … up to the length of the cache
    _hidden: Tensor  # (MOST, features), the target's hidden states that a pass reads

    def __init__(self, layers: int, ahead: int, target: Cursor, graphs: Graphs) -> None:
        self.graphs = graphs
        self.cache = StaticCache(layers, 0)
        self._target, self._ahead = target, ahead

    def prepare(self, entries: int, hidden: Tensor) -> None:
        """Makes room and captures what is missing. Arguments as for `fit`."""
        self.fit(entries, hidden)
        for key, work in self._works():
            if self.graphs.lacks((self, key)):
                self._place(entries)
                self.graphs.prepare((self, key), work)

    def fit(self, entries: int, hidden: Tensor) -> None:
        """Makes room for the longest text beside one of so many entries, which it keeps. `hidden`: (tokens, features),
        of any number of tokens."""
        length = self._target.length + self._ahead
        if length != self.cache.cursor.length:
            self.cache.resize(length)
            self._entries = torch.arange(length, device=hidden.device)
            self._hidden = hidden.new_zeros(MOST, hidden.shape[1])
            self._allocate(entries)
        if not entries:  # a value that is not a number would pass through the mask
            self.cache.clear()
            self._hidden.zero_()

    @abstractmethod
    def _allocate(self, entries: int) -> None:
        """Allocates the other buffers, and by a first pass the cache. Entries before `entries` stay as they are."""

    @abstractmethod
    def _place(self, entries: int) -> None:
        """Lets passes write from entry `entries` on, where the runs of a capture harm nothing."""

    @abstractmethod
    def _works(self) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        """All that is captured, by keys of its own."""
