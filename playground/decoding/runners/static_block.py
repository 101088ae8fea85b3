"""The static runner of a network that drafts a block in one pass: fixed widths, a cache of fixed length, graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial

import torch
from torch import Tensor

from playground.decoding.runners.base import BlockNetwork
from playground.decoding.runners.buffers import WIDTHS, Inputs
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static_cache import Cursor
from playground.decoding.runners.static_network import StaticNetwork
from playground.decoding.transfer import to_device
from playground.models.footprint import cache_bytes


class StaticBlock(StaticNetwork):
    """A network that drafts blocks, beside a static model."""

    _logits: Tensor  # (positions of a draft, vocabulary)

    def __init__(self, network: BlockNetwork, target: Cursor, graphs: Graphs) -> None:
        super().__init__(network.config.num_hidden_layers, network.block_size, target, graphs)
        self._network = network
        self._inputs = Inputs(1, 3, torch.int64, network.draft_ids.device)  # first entry, hidden states, last token

    def _allocate(self, entries: int) -> None:
        self._place(entries)
        self._logits = self._drafted(self._hidden[:1], self._inputs.rows[0]).clone()

    def _place(self, entries: int) -> None:
        self._inputs.rows.zero_()
        self._inputs.rows[0, :1].fill_(entries)

    def _works(self) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        return ((width, partial(self._read, width)) for width in WIDTHS)

    def read(self, token: int, hidden: Tensor, start: int) -> Tensor:
        """As `BlockRunner.read`, from entry `start` on. More hidden states than the widest of WIDTHS are never
        captured."""
        n = len(hidden)
        if n > WIDTHS[-1]:
            return self._drafted(hidden, to_device([start, n, token], hidden.device))
        width = next(width for width in WIDTHS if width >= n)
        self._inputs.send([start, n, token])
        self._hidden[:n].copy_(hidden)
        self.graphs.run((self, width), partial(self._read, width))
        return self._logits.clone()

    def _read(self, width: int) -> None:
        self._logits.copy_(self._drafted(self._hidden[:width], self._inputs.rows[0]))

    def _drafted(self, hidden: Tensor, at: Tensor) -> Tensor:
        """Logits. The hidden states lie in the cache from the first entry on, padding included, and then the block,
        whose positions are those without padding. `at`: first entry, number of hidden states, last token."""
        size, width, entries = self._network.block_size, len(hidden), self._entries
        start, n, token = at[:1], at[1:2], at[2:]
        slots = start + entries[: width + size]
        block = start + n + entries[:size]  # positions
        positions = torch.where(entries < start + width, entries, entries - width + n)  # of all entries
        visible = (entries < start + n) | ((entries >= start + width) & (entries < start + width + size))
        masks = {}
        for kind in set(self._network.config.layer_types):
            sees = self._network.sees(kind, block, positions)
            masks[kind] = (visible if sees is None else visible & sees).expand(1, 1, size, -1)
        self.cache.cursor.slots, self.cache.cursor.read = slots, len(entries)
        return self._network.drafted(token, hidden, self.cache.states, torch.cat([slots[:width], block]), masks)


class StaticBlockRunner:
    """Runs a network that drafts blocks; `BlockRunner` documents the members."""

    def __init__(self, static: StaticBlock) -> None:
        self._static = static
        self._entries = 0  # of the text

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._static.cache.states)

    def prepare(self, hidden: Tensor) -> None:
        """Captures what is missing, before or between rounds. `hidden`: as for `StaticNetwork.fit`."""
        self._static.prepare(self._entries, hidden)

    def read(self, token: int, hidden: Tensor) -> Tensor:
        self._static.fit(self._entries, hidden)
        logits = self._static.read(token, hidden, self._entries)
        self._entries += len(hidden)
        return logits

    def end(self) -> None:
        pass  # the entries after the text are masked, then overwritten

    def rewind(self, entries: int) -> int:
        return 0  # its buffers are every lane's
