"""The static runners of layers and block networks that draft: fixed widths, a cache of fixed length, graphs.

They draft from a static model's hidden states. A layer drafts recursively: one pass leaves its output, the attention
mask of its rows and the draft's position to the next on the device, so that the passes of a chain follow each other
without the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from playground.decoding.runners.base import RecursiveLayer
from playground.decoding.runners.buffers import MOST, WIDTHS, Inputs
from playground.decoding.runners.graphs import WARM_UP, Function
from playground.decoding.runners.static_cache import StaticCache
from playground.decoding.transfer import pinned, to_device
from playground.models.attention import Span
from playground.models.fused import use_kernels
from playground.models.networks.dflash import DFlash
from playground.models.networks.heads import SharedHead
from playground.models.sizing import cache_bytes

if TYPE_CHECKING:
    from playground.decoding.runners.static_model import StaticModel


class StaticNetwork(ABC):
    """A network with its static cache, its buffers and its graphs. It outlives the runs; one runner uses it at a time.

    Args:
        network: the network, whose modules are set to use certain kernels.
        layers: the number of layers in its cache.
        ahead: entries that a draft takes at most.
        target: the static model. The length of its cache limits that of a text, and its kernels are used here too: a
            wrong one could not change what is written, since drafts are verified.
    """

    _entries: Tensor  # 0, 1, 2, … up to the length of the cache
    _hidden: Tensor  # (MOST, features), the target's hidden states that a pass reads

    def __init__(self, network: RecursiveLayer | DFlash, layers: int, ahead: int, target: StaticModel) -> None:
        self.graphs = target.graphs
        self.cache = StaticCache([0] * layers, 0)
        self._network, self._target, self._ahead = network, target, ahead

    def prepare(self, entries: int, hidden: Tensor) -> None:
        """Allocates memory and captures missing work. The arguments are those of `fit`."""
        self.fit(entries, hidden)
        for key, work in self._works(entries):
            if self.graphs.lacks((self, key)):
                self._place(entries)
                self.graphs.prepare((self, key), work)

    def fit(self, entries: int, hidden: Tensor) -> None:
        """Allocates memory for the longest text, and preserves the first `entries` entries. `hidden`: (tokens,
        features) hidden states, of any number of tokens."""
        length = self._target.cache.cursor.length + self._ahead
        if length != self.cache.cursor.length:
            self.cache.resize(length)
            self._entries = torch.arange(length, device=hidden.device)
            self._hidden = hidden.new_zeros(MOST, hidden.shape[1])
            use_kernels(self._network.modules(), self._target.paths.layers)
            self._allocate(entries)
        if not entries:
            self.clear()

    def clear(self) -> None:
        """Sets all entries to 0, since NaN would pass through the mask."""
        self.cache.clear()
        self._hidden.zero_()

    @abstractmethod
    def read(self, last: Any, hidden: Tensor, start: int) -> Any:
        """Implements `StaticNetworkRunner.read`, from entry `start` on."""

    @abstractmethod
    def _allocate(self, entries: int) -> None:
        """Allocates the other buffers, and by a first pass the cache. Entries before `entries` are not changed."""

    @abstractmethod
    def _place(self, entries: int) -> None:
        """Makes passes write from entry `entries` on, so that the runs of a capture overwrite nothing."""

    @abstractmethod
    def _works(self, entries: int) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        """Yields the work that the next draft can need after a text of so many entries, each with a key that is unique
        in this network."""

    def _reads(self, end: int) -> int:
        """Returns how many entries attention reads in a pass whose last token is entry `end` - 1."""
        return self._target.reads(self.cache, end)


Network = TypeVar("Network", bound=StaticNetwork)


class StaticNetworkRunner(Generic[Network]):
    """Runs a static network, such as one that drafts blocks; `BlockRunner` documents the members."""

    def __init__(self, static: Network) -> None:
        self._static = static
        self._entries = 0  # entries of the text

    @property
    def cache_bytes(self) -> int:
        cache = self._static.cache
        return cache_bytes(cache.states) * self._entries // max(cache.cursor.length, 1)  # without the reserved entries

    def prepare(self, hidden: Tensor) -> None:
        """Captures missing work, before or between rounds. `hidden`: see `StaticNetwork.fit`."""
        self._static.prepare(self._entries, hidden)

    def read(self, last: Any, hidden: Tensor) -> Any:
        """Implements `LayerRunner.read`, where `last` are the tokens, and `BlockRunner.read`, where it is the last."""
        self._static.fit(self._entries, hidden)
        found = self._static.read(last, hidden, self._entries)
        self._entries += len(hidden)
        return found

    def end(self) -> None:
        pass  # the entries after the text are masked, then overwritten

    def rewind(self, entries: int) -> int:
        self._entries = max(0, min(entries, self._entries))
        return self._entries

    def saved(self) -> list[Tensor]:
        """Returns copies of the entries of the text, for `restore`."""
        return self._static.cache.copied(self._entries)

    def restore(self, saved: Sequence[Tensor]) -> None:
        """Undoes what other runners of the network have written since `saved`."""
        if self._entries:
            self._static.clear()
            self._static.cache.paste(saved)


BRANCHES = (1, 4, 8)  # tokens of a pass over a draft
DRAFT = 64 * BRANCHES[-1]  # entries that a draft takes at most: its depth times its branches


class StaticLayer(StaticNetwork):
    """A layer that drafts for a static model. `limit`: the number of positions that the model has."""

    _network: RecursiveLayer
    _mask: Tensor  # (branches, entries), added to the scores of the last pass's rows
    _end = 0  # the entry after those of the text and the draft
    _out: Tensor  # (branches, width), the last pass's output
    _logits: Tensor  # (branches, draft vocabulary)

    def __init__(self, layer: RecursiveLayer, target: StaticModel, limit: int) -> None:
        super().__init__(layer, 1, DRAFT, target)
        device = layer.draft_ids.device
        self._limit = limit
        # By width: first entry, index of the last token, tokens.
        self._inputs = {width: Inputs(1, 2 + width, torch.int64, device) for width in WIDTHS}
        self._picks = Inputs(2, BRANCHES[-1], torch.int64, device)  # tokens of a draft, the rows that they follow
        self._position = torch.zeros(1, dtype=torch.int64, device=device)  # position of the last pass's tokens
        self._free = torch.zeros(1, dtype=torch.int64, device=device)  # the next entry of the draft

    def _allocate(self, entries: int) -> None:
        free = self._entries[entries : entries + 1]
        self._mask = self._hidden.new_zeros(BRANCHES[-1], len(self._entries))
        out = self._pass(self._entries[:1], self._hidden[:1], free, free, self._mask[:1])
        self._out = out.new_zeros(BRANCHES[-1], out.shape[1])
        self._logits = self._network.logits(self._out).clone()

    def _place(self, entries: int) -> None:
        for inputs in self._inputs.values():
            inputs.rows.zero_()
        for start in (*(inputs.rows[0, :1] for inputs in self._inputs.values()), self._position, self._free):
            start.fill_(entries)

    def _works(self, entries: int) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        for width in WIDTHS:
            read = self._reads(entries + width)
            yield ("read", width, read), partial(self._read_narrow, width, read)
        for width in BRANCHES:
            for ahead in (1, WIDTHS[-1]):  # tokens of the text that the draft follows
                read = self._reads(entries + ahead + width)
                if entries + (WARM_UP + 1) * width <= read:  # each run of a capture takes further entries
                    yield ("grow", width, read), partial(self._grow, width, read)

    def read(self, ids: Sequence[int], hidden: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Implements `LayerRunner.read`, from entry `start` on. A pass over more tokens than the widest of WIDTHS is
        never captured."""
        n = len(ids)
        self._end = start + n
        if n > WIDTHS[-1]:
            inputs = to_device([start, n - 1, *ids], hidden.device)
            self._read(inputs[2:], hidden, inputs[:2], self._reads(self._end))
        else:
            width = next(width for width in WIDTHS if width >= n)
            read = self._reads(start + width)
            self._inputs[width].send([start, n - 1, *ids, *[0] * (width - n)])
            self._hidden[:n].copy_(hidden)
            self.graphs.run((self, ("read", width, read)), partial(self._read_narrow, width, read))
        return self._logits[:1].clone(), self._out[:1]

    def grow(self, ids: Sequence[int] | Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Implements `LayerRunner.grow`."""
        n = len(ids)
        width = next(width for width in BRANCHES if width >= n)
        if isinstance(ids, Tensor):
            self._picks.rows[0, :n].copy_(ids)
        else:
            unused = [0] * (BRANCHES[-1] - n)
            self._picks.send([*ids, *unused], [*rows, *unused])
        self._end += width
        read = self._reads(self._end)
        self.graphs.run((self, ("grow", width, read)), partial(self._grow, width, read))
        return self._logits[:n].clone(), self._out[:n]

    def drafted(
        self,
        key: Hashable,
        work: Function,
        passes: Sequence[int],
        numbers: Tensor,
        *given: Tensor,
        further: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Drafts after `read` without the host between the passes. As many are captured at once as were drafted twice.

        Args:
            key: unique to what `work` depends on in addition to its arguments.
            work: takes a function, the (1, draft vocabulary) logits after the text, the id of each of their columns,
                `numbers` and `given`. It can be captured. The function runs a pass, from the tokens of one depth and,
                except in a chain, for each the row of the last pass that it follows; and returns their logits.
            passes: the number of tokens in each pass.
            numbers: int64, on the host.
            further: on the host, columns added to the layer's own, as `SharedHead.further` takes them.

        Returns:
            What `work` returned. The next draft may overwrite it.
        """
        device, end, grown = self._position.device, self._end, []
        for tokens in passes:
            width = next(width for width in BRANCHES if width >= tokens)
            end += width
            grown.append((width, self._reads(end)))
        parts = torch.tensor([self._end - 1]), numbers, *([] if further is None else [further])
        sizes = tuple(map(len, parts))
        run = partial(self._drafted, work, grown, sizes)
        return self.graphs.call((self, key, *grown, sizes), run, device, pinned(torch.cat(parts), device), *given)

    def _drafted(
        self,
        work: Function,
        grown: Sequence[tuple[int, int]],
        sizes: tuple[int, ...],
        sent: Tensor,
        *given: Tensor,
    ) -> tuple[Tensor, ...]:
        """Runs the captured work of `drafted`. `grown`: the width of each pass, and how many entries attention reads.
        `sent`: the last entry of the text, so that the runs of a capture write the same entries, then the numbers and
        the further columns, of these `sizes`."""
        (last, numbers, *further), left = sent.split(sizes), iter(grown)
        draft_ids, rows = self._network.draft_ids, list[Tensor]()
        for columns in further:
            assert isinstance(self._network, SharedHead), "others have no further columns"
            draft_ids, rows = torch.cat([draft_ids, columns[1:]]), [*self._network.further(columns)]
        self._position.copy_(last)
        self._free.copy_(last + 1)

        def grow(ids: Tensor, rows: Tensor | None) -> Tensor:
            self._picks.rows[0, : len(ids)].copy_(ids)
            if rows is not None:
                self._picks.rows[1, : len(ids)].copy_(rows)
            width, read = next(left)
            self.graphs.run((self, ("grow", width, read)), partial(self._grow, width, read))
            return logits(len(ids))

        def logits(n: int) -> Tensor:
            own = self._logits[:n]
            return torch.cat([own, F.linear(self._out[:n], *rows)], dim=-1) if rows else own.clone()

        return work(grow, logits(1), draft_ids, numbers, *given)

    def _read_narrow(self, width: int, read: int) -> None:
        inputs = self._inputs[width].rows[0]
        self._read(inputs[2:], self._hidden[:width], inputs[:2], read)

    def _read(self, ids: Tensor, hidden: Tensor, at: Tensor, read: int) -> None:
        """Runs the captured work of `read`. `at`: (2,), the entry of the first token, and the index of the last."""
        start, last = at[:1], at[1:]
        slots = start + self._entries[: len(ids)]
        never = torch.finfo(hidden.dtype).min
        mask = hidden.new_zeros(len(ids), read).masked_fill_(self._entries[:read] > slots[:, None], never)
        out = self._pass(ids, hidden, slots, slots, mask).index_select(0, last)
        self._logits[:1].copy_(self._network.logits(out))
        self._out.copy_(out)  # all rows, since padding follows any of them
        self._mask.fill_(never)  # further passes of the draft may read more entries
        self._mask[:, :read].copy_(mask.index_select(0, last))
        self._position.copy_(start + last)
        self._free.copy_(start + last + 1)
        self._picks.rows[1].zero_()  # for a chain, whose passes set no rows

    def _grow(self, width: int, read: int) -> None:
        ids, rows = self._picks.rows[:, :width]
        self._position.add_(1)
        slots = self._free + self._entries[:width]
        mask = self._mask[:, :read].index_select(0, rows).scatter_(1, slots[:, None], 0.0)
        out = self._pass(ids, self._out.index_select(0, rows), self._position.expand(width), slots, mask)
        self._out[:width].copy_(out)
        self._logits[:width].copy_(self._network.logits(out))
        self._mask[:width, :read].copy_(mask)
        self._free.add_(width)

    def _pass(self, ids: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        self.cache.cursor.slots, self.cache.cursor.read = slots, mask.shape[1]
        positions = positions.clamp(max=self._limit - 1)  # padding may lie beyond
        mask = mask[None, None]
        if self._target.paths.attention:
            mask.span = Span(self._entries[:1], slots[-1:] + 1, positions)  # type: ignore[attr-defined]
        return self._network(ids[None], hidden[None], self.cache.states, positions[None], mask)[0]


class StaticLayerRunner(StaticNetworkRunner[StaticLayer]):
    """Runs a layer with full attention; `LayerRunner` documents the members."""

    def grow(self, ids: Sequence[int] | Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._static.grow(ids, rows)

    def drafted(self, key: Hashable, work: Function, *given: Any, **columns: Any) -> tuple[Tensor, ...]:
        """Drafts without the host between the passes; see `StaticLayer.drafted`."""
        return self._static.drafted(key, work, *given, **columns)


class StaticBlock(StaticNetwork):
    """A network that drafts blocks for a static model."""

    _network: DFlash
    _logits: Tensor  # (positions of a draft, vocabulary)

    def __init__(self, network: DFlash, target: StaticModel) -> None:
        super().__init__(network, network.config.num_hidden_layers, network.block_size, target)
        self._inputs = Inputs(1, 3, torch.int64, network.draft_ids.device)  # first entry, hidden states, last token

    def _allocate(self, entries: int) -> None:
        self._place(entries)
        self._logits = self._drafted(self._hidden[:1], self._inputs.rows[0], len(self._entries)).clone()

    def _place(self, entries: int) -> None:
        self._inputs.rows.zero_()
        self._inputs.rows[0, :1].fill_(entries)

    def _works(self, entries: int) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        for width in WIDTHS:
            read = self._reads(entries + width + self._network.block_size)
            yield (width, read), partial(self._read, width, read)

    def read(self, token: int, hidden: Tensor, start: int) -> Tensor:
        """Implements `BlockRunner.read`, from entry `start` on. A pass over more hidden states than the widest of
        WIDTHS is never captured."""
        n, size = len(hidden), self._network.block_size
        if n > WIDTHS[-1]:
            return self._drafted(hidden, to_device([start, n, token], hidden.device), self._reads(start + n + size))
        width = next(width for width in WIDTHS if width >= n)
        read = self._reads(start + width + size)
        self._inputs.send([start, n, token])
        self._hidden[:n].copy_(hidden)
        self.graphs.run((self, (width, read)), partial(self._read, width, read))
        return self._logits.clone()

    def _read(self, width: int, read: int) -> None:
        self._logits.copy_(self._drafted(self._hidden[:width], self._inputs.rows[0], read))

    def _drafted(self, hidden: Tensor, at: Tensor, read: int) -> Tensor:
        """Returns the network's output for a block. The cache holds the hidden states from the first entry on, padding
        included, and then the block, whose positions are those without padding. `at`: (3,), the first entry, the number
        of hidden states, the last token. `read`: how many entries attention reads."""
        size, width, entries = self._network.block_size, len(hidden), self._entries[:read]
        start, n, token = at[:1], at[1:2], at[2:]
        slots = start + entries[: width + size]
        block = start + n + entries[:size]  # positions of the block
        positions = torch.where(entries < start + width, entries, entries - width + n)  # positions of all entries
        visible = (entries < start + n) | ((entries >= start + width) & (entries < start + width + size))
        masks = {}
        for kind in set(self._network.config.layer_types):
            sees = self._network.sees(kind, block, positions)
            masks[kind] = (visible if sees is None else visible & sees).expand(1, 1, size, -1)
        self.cache.cursor.slots, self.cache.cursor.read = slots, read
        return self._network.drafted(token, hidden, self.cache.states, torch.cat([slots[:width], block]), masks)
