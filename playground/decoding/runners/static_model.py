"""A model with a KV cache of fixed length, and its passes of a few fixed widths, captured once and then replayed.

A pass is padded to the next width, and the rows of the padding are dropped. Attention reads the entries up to the next
power of two, if fewer are not reserved. A long prompt is read eagerly, over the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.decoding.runners.base import RecursiveLayer
from playground.decoding.runners.buffers import MOST, Inputs, additive, ancestry, width_of, widths_up_to
from playground.decoding.runners.capture import hidden_states, watched_modules, watching
from playground.decoding.runners.fast_paths import Paths, choose_paths
from playground.decoding.runners.graphs import Function, Graphs
from playground.decoding.runners.static_cache import StaticCache, windows_of
from playground.decoding.runners.static_network import StaticBlock, StaticLayer
from playground.decoding.transfer import pinned, to_device
from playground.models.attention import Span, context_of, layers_of
from playground.models.fused import use_kernels
from playground.models.networks.dflash import DFlash

LEAST = 256  # entries of a cache, which grows by no fewer
COPY = 3  # times the bytes of some entries: what copying them takes, and reading the copy
STEPS = 8  # lengths in a power of two that a cache can have, few so that requests of about one length share graphs


@dataclass
class Buffers:
    """The buffers of the passes of one width.

    Attributes:
        inputs: (3, width) int64: token ids, positions, entries to write.
        among: (width, width) in the model's dtype, added to the scores among the pass's own tokens.
        logits: (width, vocabulary) float32.
        holds_tree: whether `among` is a tree's.
    """

    inputs: Inputs
    among: Inputs
    logits: Tensor
    holds_tree: bool = True  # so that the first chain writes `among`


class StaticModel:
    """A model with its static cache, its buffers and its graphs. It outlives the runs; one runner uses it at a time.
    The cache only grows: a shorter request uses the graphs of a longer one.

    Attributes:
        whole: the model of which this one is the first layers; itself otherwise.
        user: returns the runner whose entries the cache holds, if it still exists.
        room: tokens of the longest sequence expected so far.
        paths: the kernels of its passes, chosen before the first one.
    """

    def __init__(self, model: PreTrainedModel, graphs: Graphs, whole: StaticModel | None = None) -> None:
        """Makes the static form of a model. `whole`: the model of which `model` is the first layers; None otherwise."""
        self.model, self.graphs = model, graphs
        self.whole = whole or self
        self.user: Callable[[], Any] = lambda: None
        self.room = 0
        self.paths = Paths()
        self._count = len(layers_of(model) or ()) if whole else model.config.get_text_config().num_hidden_layers
        windows = windows_of(model.config)
        self.cache: StaticCache = whole.cache.first_layers(self._count) if whole else StaticCache(windows, LEAST)
        self._limit = context_of(model.config)
        self._views: dict[int, StaticModel] = {}
        self._drafting: dict[Any, Any] = {}  # the static forms of layers and networks that draft from hidden states
        self._watched: list[nn.Module] = []
        self._layers: tuple[int, ...] = ()
        self._hidden: dict[tuple[int, ...], Tensor] = {}  # (MOST, layers x width) for each choice of layers
        self._buffers: dict[int, Buffers] = {}  # by width
        self._moves: dict[int, Inputs] = {}  # by width: entries of an accepted branch, from where and to where
        self._entries = torch.arange(self.cache.cursor.length, device=model.device)
        # The entry of the first token that a captured draft feeds.
        self._first: Inputs = whole._first if whole else Inputs(1, 1, torch.int64, model.device)

    def first_layers(self, model: PreTrainedModel) -> StaticModel:
        """Returns the model's first layers over this cache's entries, with buffers of their own."""
        count = len(layers_of(model) or ())
        if count not in self._views:
            self._views[count] = StaticModel(model, self.graphs, whole=self)
        return self._views[count]

    def layer(self, layer: RecursiveLayer) -> StaticLayer:
        """Returns the static form of a layer that drafts from the model's hidden states, with its own buffers and
        cache."""
        if layer not in self._drafting:
            self._drafting[layer] = StaticLayer(layer, self, self._limit)
        return self._drafting[layer]

    def block(self, network: DFlash) -> StaticBlock:
        """Returns the static form of a network that drafts a block from the model's hidden states, with its own buffers
        and cache."""
        if network not in self._drafting:
            self._drafting[network] = StaticBlock(network, self)
        return self._drafting[network]

    def watch(self, layers: Sequence[int]) -> Tensor | None:
        """Implements `Runner.watch`. Returns the buffer of the hidden states, (MOST, layers x width); None without
        layers."""
        self._layers = tuple(layers)
        self._watched = watched_modules(self.model, layers)
        if layers and self._layers not in self._hidden:
            width = self.model.config.get_text_config(decoder=True).hidden_size
            shape = MOST, len(layers) * width
            self._hidden[self._layers] = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        return self._hidden.get(self._layers)

    def prepare(self, start: int, length: int, widest: int) -> None:
        """Allocates `length` entries, and captures the missing passes of up to `widest` tokens. Entries from `start` on
        are free."""
        self.reserve(length)
        self.whole.choose()
        self.capture(start, widths_up_to(widest))

    def choose(self) -> None:
        """Allocates the cache and chooses the kernels, once."""
        if not self.cache.allocated:
            self.wide([0], keep=1)
            self.use(paths := choose_paths(self))
            if not paths.captured:
                self.graphs.refuse(paths.refused)

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    def use(self, paths: Paths) -> None:
        """Makes passes use these kernels. Passes are to be captured again."""
        self.paths = paths
        use_kernels(self.model.modules(), paths.layers)
        self.graphs.clear()

    @property
    def how(self) -> str:
        """How passes are run, in words, such as "compiled (CUDA graphs), with fused layers"."""
        if self.graphs.failure:
            return f"static cache, not compiled: {self.graphs.failure}"
        used, refused = self.paths.names, self.paths.refused
        return self.graphs.kind + (f", with {used}" if used else "") + (f"; {refused}" if refused else "")

    def capture(self, start: int, widths: Iterable[int]) -> None:
        """Captures the missing passes of these widths, and the moves after them. Entries from `start` on are free."""
        for width in widths:
            buffers, end = self._of(width), start + width
            while end <= self.cache.cursor.length:
                read = self._read(end)
                if self.graphs.lacks(self._key(width, read)):
                    buffers.inputs.send([0] * width, [0] * width, range(start, start + width))
                    with self._passing(buffers, read):
                        self.graphs.prepare(self._key(width, read), partial(self._pass, width, read))
                end = read + 1
            if self.graphs.lacks(self._move_key(width)):
                self._moves_of(width).send(range(width), range(width))  # each entry moves to its own place
                self.graphs.prepare(self._move_key(width), partial(self._move, width))

    def reserve(self, length: int) -> None:
        """Grows the cache to at least `length` entries."""
        if length > self.cache.cursor.length:
            step = max(LEAST, _power_of_two(length) // STEPS)
            self.whole.resize(-(-length // step) * step)

    def resize(self, length: int) -> None:
        self.cache.resize(length)
        self.graphs.clear()
        for static in (self, *self._views.values()):
            static._entries = torch.arange(length, device=self.model.device)

    def narrow(self, ids: Sequence[int] | Tensor, start: int, tree: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """Runs a pass over at most MOST tokens from entry `start` on, at a fixed width. `tree`: see `Runner.forward`.

        Returns:
            Logits of the tokens, (n, vocabulary), and their hidden states, (n, layers x width), if any are watched. The
            next pass overwrites both.
        """
        n, before = len(ids), len(ids) - len(tree)
        width = width_of(n)
        self.reserve(start + width)
        buffers, read = self._of(width), self._read(start + width)
        depths = list(range(width))
        for i, parent in enumerate(tree):
            depths[before + i] = depths[before + parent] + 1
        positions = [min(start + depth, self._limit - 1) for depth in depths]
        known = [0] * n if isinstance(ids, Tensor) else ids
        buffers.inputs.send([*known, *[0] * (width - n)], positions, range(start, start + width))
        if isinstance(ids, Tensor):
            buffers.inputs.rows[0, :n].copy_(ids)
        if tree or buffers.holds_tree:
            among = torch.ones(width, width, dtype=torch.bool).tril()
            among[before:n, before:n] = torch.from_numpy(ancestry(tree))
            buffers.among.send_rows(additive(among, self.model.dtype)[0, 0])
            buffers.holds_tree = bool(tree)
        with self._passing(buffers, read):
            self.graphs.run(self._key(width, read), partial(self._pass, width, read))
        hidden = self._hidden[self._layers][:n] if self._layers else None
        return buffers.logits[:n], hidden

    def drafted(
        self, key: Hashable, work: Function, start: int, passes: int, logits: Tensor, numbers: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        """Drafts a chain, with so many passes over one token, from entry `start` on; see `StaticLayer.drafted`.
        `logits`: (1, draft vocabulary), those after the text, whose columns are the first of the vocabulary."""
        self.reserve(start + passes)
        reads = tuple(self._read(start + i) for i in range(1, passes + 1))
        self._first.send([start])
        run = partial(self._drafted, work, reads)
        device = self.model.device
        return self.graphs.call((self._count, key, reads), run, device, logits, pinned(numbers, device), *given)

    def _drafted(self, work: Function, reads: Sequence[int], logits: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Runs the captured work of `drafted`."""
        buffers, left, columns = self._of(1), iter(enumerate(reads)), logits.shape[1]

        def grow(ids: Tensor, rows: None) -> Tensor:
            i, read = next(left)
            slot = self._first.rows[0] + i
            for row, values in zip(buffers.inputs.rows, (ids, slot.clamp(max=self._limit - 1), slot), strict=True):
                row.copy_(values)
            with self._passing(buffers, read):
                self.graphs.run(self._key(1, read), partial(self._pass, 1, read))
            return buffers.logits[:, :columns].clone()

        return work(grow, logits, torch.arange(columns, device=logits.device), *given)

    def fulfil(self, start: int) -> None:
        """Captures what was called without a capture, see `Graphs.fulfil`. Entries from `start` on are free."""
        if self.graphs.pending:
            self._first.send([start])
            self.graphs.fulfil()

    def _key(self, width: int, read: int) -> tuple[int, int, int, tuple[int, ...]]:
        return self._count, width, read, self._layers

    def _move_key(self, width: int) -> tuple[int, str, int]:
        return self._count, "move", width

    def _read(self, end: int) -> int:
        return self.reads(self.cache, end)

    def reads(self, cache: StaticCache, end: int) -> int:
        """Returns how many entries of a cache, the model's or a drafting network's, attention reads in a pass whose
        last token is entry `end` - 1: a power of two where there are as many, so that a few captures serve a text.
        `split_attention` itself reads no more than needed."""
        return cache.cursor.length if self.whole.paths.attention else self.bucket(end, cache)

    def bucket(self, end: int, cache: StaticCache | None = None) -> int:
        """Returns the power of two from `end` on, or the length of a cache, by default the model's, if that is less."""
        return min(max(LEAST, _power_of_two(end)), (cache or self.cache).cursor.length)

    def over_text(self, work: Function, read: int, length: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Returns what captured work computes from keys and values of the text. Before `given` it gets, by layer type,
        those of the last layer, with `read` entries, and the mask of those that `shared_kv` does not have, (1, 1, 1,
        read); then `length`, (1,), that of the text."""
        entries, never = self._entries[:read], torch.finfo(self.model.dtype).min
        masks = {}
        for kind, window in self.cache.windows.items():
            hidden = entries >= length
            if window:
                hidden = hidden | (entries < length - window - 1)
            mask = torch.zeros(1, 1, 1, read, dtype=self.model.dtype, device=entries.device)
            masks[kind] = mask.masked_fill_(hidden, never)
        kv = {kind: (keys[:, :, :read], values[:, :, :read]) for kind, (keys, values) in self.cache.last.items()}
        return work(kv, masks, length, *given)

    def _of(self, width: int) -> Buffers:
        if width not in self._buffers:
            dtype, device = self.model.dtype, self.model.device
            self._buffers[width] = Buffers(
                Inputs(3, width, torch.int64, device),
                Inputs(width, width, dtype, device),
                torch.zeros(width, self.vocab_size, device=device),
            )
        return self._buffers[width]

    def _moves_of(self, width: int) -> Inputs:
        if width not in self._moves:
            self._moves[width] = Inputs(2, width, torch.int64, self.model.device)
        return self._moves[width]

    def _pass(self, width: int, read: int) -> None:
        """Runs the work that is captured, which reads and writes the buffers alone."""
        buffers = self._buffers[width]
        ids, positions, slots = buffers.inputs.rows
        self.cache.cursor.recent = {window: self._recent(slots, window) for window in self._copied(width, read)}
        masks = {kind: self._mask(buffers, read, window) for kind, window in self.whole.cache.windows.items()}
        out = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=self.cache.states,
            use_cache=True,
        )
        buffers.logits.copy_(out.logits[0])

    def _mask(self, buffers: Buffers, read: int, window: int) -> Tensor:
        """Returns the mask of the layers with this sliding window, 0 for full attention, (1, 1, width, entries). An
        entry before the pass is at the position of its index, a token of the pass at that of its depth."""
        _, positions, slots = buffers.inputs.rows
        among, never = buffers.among.rows, torch.finfo(self.model.dtype).min
        if window:
            among = among.masked_fill(positions[:, None] - positions >= window, never)
        if self.whole.paths.attention:
            mask = among[None, None]
            mask.span = Span(slots[:1], slots[-1:] + 1, positions, window)  # type: ignore[attr-defined]
            return mask
        entries = self.cache.cursor.recent.get(window, self._entries[:read])
        hidden = entries >= slots[:1]
        if window:
            hidden = hidden | (positions[:, None] - entries >= window)
        mask = among.new_zeros(1, 1, len(slots), len(entries)).masked_fill_(hidden, never)
        return mask.index_copy_(3, slots - entries[:1], among[None, None])

    def _copied(self, width: int, read: int) -> list[int]:
        """Returns the sliding windows whose entries are copied for a pass, since that takes less than reading all.
        `split_attention` needs no copy."""
        windows = [] if self.whole.paths.attention else self.whole.cache.windows.values()
        return [window for window in windows if window and COPY * (window + width) < read]

    def _recent(self, slots: Tensor, window: int) -> Tensor:
        """Returns the entries that a pass with this sliding window reads: those of its first token's window, and its
        own."""
        return (slots[:1] - window + 1).clamp(min=0) + self._entries[: window - 1 + len(slots)]

    def wide(self, ids: Sequence[int], keep: int) -> tuple[Tensor, Tensor | None]:
        """Runs a pass over a prompt of any length, which is never captured. Returns the last `keep` logits, (keep,
        vocabulary), and the hidden states of all tokens, (n, layers x width), if any are watched."""
        n = len(ids)
        self.reserve(n)
        self.cache.cursor.slots, self.cache.cursor.read, self.cache.cursor.recent = self._entries[:n], n, {}
        seen: dict[int, Tensor] = {}
        with watching(self._watched, seen.__setitem__):
            out = self.model(
                input_ids=to_device([ids], self.model.device),
                position_ids=self._entries[None, :n],
                past_key_values=self.cache.states,
                use_cache=True,
                logits_to_keep=keep,
            )
        return out.logits[0], hidden_states(seen)

    def move(self, start: int, rows: Sequence[int]) -> None:
        """Moves the entries `start` + `rows` to `start` and after it."""
        n, width = len(rows), width_of(len(rows))
        moves, to = self._moves_of(width), range(start, start + width)
        moves.send([*(start + row for row in rows), *to[n:]], to)  # entries after the branch move to their own places
        self.graphs.run(self._move_key(width), partial(self._move, width))

    def _move(self, width: int) -> None:
        """Runs the captured move. It must not run twice: an entry that has moved may be the source of another."""
        self.cache.move(*self._moves[width].rows)

    @contextmanager
    def _passing(self, buffers: Buffers, read: int) -> Iterator[None]:
        """Makes a pass in this context write the entries that the buffers name, and the hidden states of watched
        layers."""
        self.cache.cursor.slots, self.cache.cursor.read = buffers.inputs.rows[2], read
        into = self._hidden.get(self._layers)

        def keep(i: int, output: Tensor) -> None:
            assert into is not None
            _, tokens, width = output.shape
            into[:tokens, i * width : (i + 1) * width].copy_(output[0])

        with watching(self._watched, keep):
            yield


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
