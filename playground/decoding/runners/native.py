"""The native runner: a pass is one call of the CPU engine (`models/cpu/native`), on a cache of its own layout.

Its logits have the same bits at every width, for a chain or a tree, on any number of threads, so that greedy lanes give
the same text. An MTP layer and an EAGLE-3 head are run by the engine too, and draft in one call, as is the pass of
DFlash, DSpark and Domino over a block; other networks that draft by torch, over the engine's linear layers.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from playground.decoding.runners.base import FULL, BlockRunner, LayerRunner, RecursiveLayer, Runner
from playground.decoding.runners.eager import EagerBlock, EagerLayer, listed
from playground.models.attention import layers_of
from playground.models.cpu.native.drafter import NativeBlock, NativeDrafter, native_block, native_drafter
from playground.models.cpu.native.layers import NativeLinear
from playground.models.cpu.native.library import Block, Cache, Draft, Drafter, Matrix, Pass, Step, Threads
from playground.models.cpu.native.model import Native, NativeModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import SharedHead

GROUP = 16  # entries whose keys lie side by side
CHUNK = 256  # tokens of a long prompt that a pass reads at once
ADDED = 16 * GROUP  # room for further rows of the head, which doubles
WIDTH = 8  # engine.h's MOST_WIDTH
LEAST, SHARE = 256, 4  # the cache grows by LEAST entries, or by one in SHARE of its entries if that is more


class NativeCache:
    """The keys and values of one sequence, in the layout of engine.h.

    Attributes:
        keys: (layers, groups, room / 16, head, 16).
        values: (layers, groups, room, head).
    """

    def __init__(self, model: Native) -> None:
        self._native, self._struct = model, model.struct
        self.keys, self.values, self.room = torch.empty(0), torch.empty(0), 0
        self._make(0)

    def fit(self, entries: int) -> None:
        """Makes room for so many entries, and keeps those that are there."""
        if entries > self.room:
            self._make(-(-(entries + max(LEAST, entries // SHARE)) // GROUP) * GROUP)

    def _make(self, room: int) -> None:
        m, held = self._struct, self.room
        keys = torch.zeros(m.layers, m.groups, room // GROUP, m.head, GROUP)
        values = torch.zeros(m.layers, m.groups, room, m.head)
        if held:
            keys[:, :, : held // GROUP], values[:, :, :held] = self.keys, self.values
        self.keys, self.values, self.room = keys, values, room
        self._angles = self._native.angles(room)
        self.struct = Cache(*(each.data_ptr() for each in (keys, values, *self._angles)), room)

    def bytes(self, entries: int) -> int:
        """Returns the size of so many entries."""
        m = self._struct
        return entries * m.layers * m.groups * m.head * 2 * 4

    def gather(self, start: int, path: Sequence[int]) -> None:
        """Moves the entries start + path[i] to start + i."""
        if path and path[-1] >= len(path):
            moved = array("i", path)
            self._native.engine.functions.gather(byref(self._struct), byref(self.struct), start, _at(moved), len(moved))


class Scratch:
    """Memory in which a pass computes."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def at(self, needed: int) -> int:
        """Returns the address of at least so many bytes."""
        if needed > len(self._memory):
            self._memory = torch.zeros(needed + needed // SHARE, dtype=torch.uint8)
        return self._memory.data_ptr()


class NativeRunner(Runner):
    """Runs a model that the engine knows; `Runner` documents the members."""

    def __init__(self, model: PreTrainedModel, native: NativeModel, prompt: int = 0) -> None:
        """`prompt`: tokens of the first text, for which memory is written at once: the first use of a page of memory
        takes longer than what a pass computes in it."""
        super().__init__(model)
        self._native = native
        self._cache = NativeCache(native)
        self._watched = array("i")
        self._scratch = Scratch()
        self._cache.fit(prompt)
        self._room_for(min(prompt, CHUNK), prompt)

    @property
    def cache_bytes(self) -> int:
        return self._cache.bytes(self.length)

    def watch(self, layers: Sequence[int]) -> None:
        self._watched = array("i", layers)

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        native = native_drafter(layer, self._native.engine)
        return NativeLayerRunner(native) if native else EagerLayer(layer)

    def block(self, network: DFlash) -> BlockRunner:
        native = native_block(network, self._native.engine)
        return NativeBlockRunner(native) if native else EagerBlock(network)

    def first_layers(self, layers: PreTrainedModel) -> NativeRunner:
        view = self._view(layers)
        view._native, view._watched = self._native.first(len(layers_of(layers) or ())), array("i")
        return view

    def forward(self, ids: Sequence[int] | Tensor, keep: int, tree: Sequence[int] | None = None) -> Tensor:
        fed = array("i", listed(ids))
        vocabulary = self._native.struct.vocabulary
        if fed and not 0 <= min(fed) <= max(fed) < vocabulary:
            raise IndexError(f"A token is outside of the vocabulary of {vocabulary:,}.")
        self._cache.fit(self.length + len(fed))
        logits = torch.empty(keep, vocabulary)
        highest = array("i", bytes(4 * keep))
        hidden = torch.empty(len(fed), len(self._watched) * self._native.struct.width)
        whole = max(keep, len(tree or ()), 1)  # tokens at the end that are read in one pass
        done = 0
        while done < len(fed):
            left = len(fed) - done
            now = left if left <= max(CHUNK, whole) else min(CHUNK, left - whole)
            last = done + now == len(fed)
            self._run(
                fed[done : done + now], keep if last else 0, tree if last else None, logits, highest, hidden[done:]
            )
            done += now
        self.passes += 1
        self._hidden = hidden if self._watched else None
        logits.__dict__["highest"] = highest.tolist()
        return logits

    def _run(
        self,
        ids: array[int],
        keep: int,
        tree: Sequence[int] | None,
        logits: Tensor,
        highest: array[int],
        hidden: Tensor,
    ) -> None:
        """Runs one pass and moves the end of the sequence."""
        functions, model = self._native.engine.functions, self._native.struct
        threads, parents = Threads.number, array("i", tree or ())
        scratch = self._room_for(len(ids), self.length + len(ids))
        counts = len(ids), len(parents), len(self._watched), self.length, keep
        results = logits.data_ptr(), _at(highest), hidden.data_ptr(), scratch
        work = Pass(_at(ids), _at(parents), _at(self._watched), *counts, *results)
        functions.run(byref(model), byref(self._cache.struct), byref(work), threads)
        self.length += len(ids)

    def _room_for(self, tokens: int, entries: int) -> int:
        """Returns the address of memory for a pass."""
        functions, model = self._native.engine.functions, self._native.struct
        return self._scratch.at(functions.scratch(byref(model), tokens, entries, Threads.number))

    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        self._cache.gather(length, path)
        self._roll_back(length, path)


class Wanted(NamedTuple):
    """The limits of a draft of the likeliest tokens.

    Attributes:
        depth, width, size: the most tokens in a branch, after each token, and in all.
        stop_below: the draft ends where the probability of getting there is below it, or after a token whose q is.
        by_last: the latter.
        cost: (size + 2,), float32, the cost of a target pass over so many tokens.
        refused: (vocabulary,) bool, tokens that are not drafted.
        ends: tokens after which nothing is drafted.
    """

    depth: int
    width: int
    size: int
    stop_below: float
    by_last: bool
    cost: Tensor
    refused: Tensor | None
    ends: array[int]


class Grown(NamedTuple):
    """A draft, branch by branch. `rows`: for each token the row of `logits` that it was chosen from, whose memory the
    next draft uses again."""

    ids: list[int]
    parents: list[int]
    q: list[float]
    rows: list[int]
    logits: Sequence[Tensor]


class NativeLayerRunner:
    """Runs a layer; `LayerRunner` documents the members that all have."""

    def __init__(self, native: NativeDrafter) -> None:
        self._native = native
        self._cache = NativeCache(native)
        self._entries = 0
        self.drafter = Drafter.from_buffer_copy(native.drafter)
        self.set_tokens(native.network.draft_ids.int(), Matrix())
        self.vocabulary = NativeVocabulary(self) if isinstance(native.network, SharedHead) else None
        self._scratch = Scratch()
        self._logits, self._output = torch.empty(0, 0), torch.empty(WIDTH, native.struct.width)
        self._rows: Sequence[Tensor] = ()  # of the logits, without padding
        self._parents, self._depth, self._tips = array("i"), 0, [-1]
        self._numbers = [array("i"), array("i"), array("i")]  # ids, parents and rows of a draft
        self._q = array("f")

    @property
    def cache_bytes(self) -> int:
        return self._cache.bytes(self._entries)

    def set_tokens(self, ids: Tensor, added: Matrix) -> None:
        """Sets the token of each row, int32, and the further rows of the head."""
        self._tokens, self.drafter.added, self.drafter.ids = ids, added, ids.data_ptr()
        self._columns = len(ids)
        self._stride = -(-self._columns // GROUP) * GROUP

    def read(self, ids: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        fed, hidden = self._last(ids, hidden)
        self._fit(1)
        self._step(fed, None, hidden, 1, self._entries)
        self._entries += len(fed)
        self._parents, self._depth, self._tips = array("i"), 0, [-1]
        return self._logits[:1, : self._columns].clone(), self._output[:1].clone()

    def grow(self, ids: Sequence[int] | Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        fed = array("i", listed(ids))
        start, n = self._entries + len(self._parents), len(fed)
        self._parents.extend(self._tips[row] for row in rows)
        hidden = self._output[torch.tensor(rows)]
        self._cache.fit(start + n)
        self._fit(n)
        self._step(fed, self._parents, hidden, n, start)
        self._depth += 1
        self._tips = list(range(start - self._entries, start - self._entries + n))
        return self._logits[:n, : self._columns].clone(), self._output[:n].clone()

    def end(self) -> None:
        self._parents = array("i")

    def rewind(self, entries: int) -> int:
        self._entries = max(entries, 0)
        return self._entries

    def draft(self, ids: Sequence[int], hidden: Tensor, wanted: Wanted) -> Grown:
        """Reads the tokens of the text that follow those in the cache, as `read` does, and drafts after them."""
        fed, hidden = self._last(ids, hidden)
        self._cache.fit(self._entries + len(fed) + WIDTH * wanted.depth)
        self._fit(1 + wanted.width * (wanted.depth - 1))
        if len(self._q) < wanted.size:
            self._numbers, self._q = [array("i", [0]) * wanted.size for _ in range(3)], array("f", [0]) * wanted.size
        text = self._text(fed, None, hidden, 1, self._entries)
        refused = None if wanted.refused is None else wanted.refused.data_ptr()
        job = Draft(
            text,
            *(wanted.depth, wanted.width, wanted.size, wanted.by_last, wanted.stop_below),
            *(wanted.cost.data_ptr(), refused, _at(wanted.ends), len(wanted.ends)),
            *(_at(each) for each in (*self._numbers, self._q)),
            *(self._logits.data_ptr(), self._output.data_ptr()),
        )
        functions, threads = self._native.engine.functions, Threads.number
        job.scratch = self._scratch.at(functions.draft_scratch(byref(self.drafter), byref(job), threads))
        n = functions.draft(byref(self.drafter), byref(self._cache.struct), byref(job), threads)
        self._entries += len(fed)
        tokens, parents, rows = (each[:n].tolist() for each in self._numbers)
        return Grown(tokens, parents, self._q[:n].tolist(), rows, self._rows)

    def _last(self, ids: Sequence[int], hidden: Tensor) -> tuple[array[int], Tensor]:
        """Reads the tokens before the last CHUNK, and returns those with the hidden states that the layer reads."""
        fed, network = array("i", ids), self._native.network
        self._cache.fit(self._entries + len(fed))
        hidden = network.projected(hidden) if isinstance(network, Eagle3Head) else hidden.contiguous()
        while len(fed) > CHUNK:
            self._step(fed[:CHUNK], None, hidden, 0, self._entries)
            fed, hidden, self._entries = fed[CHUNK:], hidden[CHUNK:], self._entries + CHUNK
        return fed, hidden

    def _fit(self, rows: int) -> None:
        """Makes room for so many rows of logits and of output."""
        rows = max(rows, WIDTH)
        if self._logits.shape[0] < rows or self._logits.shape[1] != self._stride:
            self._logits = torch.empty(max(rows, len(self._logits)), self._stride)
            self._rows = ()
        if not self._rows or len(self._rows[0]) != self._columns:
            self._rows = self._logits[:, : self._columns].unbind()

    def _text(self, ids: array[int], parents: array[int] | None, hidden: Tensor, keep: int, start: int) -> Step:
        position = self._entries + self._depth
        counts = len(ids), start if parents is None else self._entries, start, position, keep, self._stride
        at = _at(ids), None if parents is None else _at(parents), hidden.data_ptr()
        return Step(*at, *counts, self._logits.data_ptr(), self._output.data_ptr())

    def _step(self, ids: array[int], parents: array[int] | None, hidden: Tensor, keep: int, start: int) -> None:
        """Runs one pass: of the text, or of a draft."""
        step, functions = self._text(ids, parents, hidden, keep, start), self._native.engine.functions
        threads = Threads.number
        scratch = self._scratch.at(functions.draft_scratch(byref(self.drafter), byref(Draft(step)), threads))
        functions.step(byref(self.drafter), byref(self._cache.struct), byref(step), threads, scratch)


class NativeVocabulary:
    """The draft vocabulary, extended by the tokens of the sequence, as `TextVocabulary` is; the runner's passes give
    the logits of the added tokens too."""

    def __init__(self, runner: NativeLayerRunner) -> None:
        self._runner = runner
        head = runner._native.network.whole_head
        assert isinstance(head, NativeLinear)
        self._head, self._own = head, runner._native.network.draft_ids
        self._of_own = frozenset(self._own.tolist())
        self._groups = head.groups[:0]
        self._tokens, self._ids = self._own.int(), self._own
        self.clear()

    def clear(self) -> None:
        """Forgets the tokens of the sequence."""
        self._known, self._read, self._count = set(self._of_own), 0, len(self._own)
        self._runner.set_tokens(self._tokens[: self._count], Matrix())

    def read(self, ids: Sequence[int]) -> Tensor:
        new = [id_ for id_ in dict.fromkeys(ids[self._read :]) if id_ not in self._known]
        self._read = len(ids)
        if new:
            self._known.update(new)
            self._add(new)
        return self._ids[: self._count]

    def _add(self, new: list[int]) -> None:
        own_count, before = len(self._own), self._count
        self._count += len(new)
        if self._count > len(self._ids):
            room = own_count + max(ADDED, 2 * (self._count - own_count))
            self._ids = torch.cat([self._ids[:before], self._own.new_zeros(room - before)])
            self._tokens = torch.cat([self._tokens[:before], self._tokens.new_zeros(room - before)])
            groups = self._head.groups.new_zeros(-(-(room - own_count) // GROUP), self._head.groups.shape[1])
            groups[: len(self._groups)] = self._groups
            self._groups = groups
        ids = torch.tensor(new, dtype=torch.int32)
        self._ids[before : self._count] = self._tokens[before : self._count] = ids
        added = Matrix(self._groups.data_ptr(), None, self._head.kind, self._count - own_count, self._head.in_features)
        self._head.take(ids, added)
        self._runner.set_tokens(self._tokens[: self._count], added)

    def extended(self, logits: Tensor, out: Tensor) -> Tensor:
        return logits


class NativeBlockRunner:
    """Runs a network that drafts blocks; `BlockRunner` documents the members."""

    def __init__(self, native: NativeBlock) -> None:
        self._native, self._cache, self._entries = native, NativeCache(native), 0
        self._scratch = Scratch()

    @property
    def cache_bytes(self) -> int:
        return self._cache.bytes(self._entries)

    def read(self, token: int, hidden: Tensor) -> Tensor:
        network = self._native.network
        features, block = network.base.encoder(hidden), network.embedded(torch.tensor([token]))
        self._cache.fit(self._entries + len(features) + len(block))
        while len(features) > CHUNK:
            self._run(features[:CHUNK], block[:0])
            features = features[CHUNK:]
        self._run(features, block)
        return network.output(block[-network.drafts :])

    def _run(self, features: Tensor, block: Tensor) -> None:
        functions, model, threads = self._native.engine.functions, self._native.struct, Threads.number
        counts = len(features), len(block), self._entries, FULL in self._native.network.causal
        work = Block(features.data_ptr(), block.data_ptr(), *counts)
        tokens = max(len(features), len(block))
        entries = self._entries + len(features) + len(block)
        work.scratch = self._scratch.at(functions.scratch(byref(model), tokens, entries, threads))
        functions.block(byref(model), byref(self._cache.struct), byref(work), threads)
        self._entries += len(features)

    def end(self) -> None:
        """Does nothing: the next pass overwrites the block's entries."""

    def rewind(self, entries: int) -> int:
        self._entries = max(0, min(entries, self._entries))
        return self._entries


def _at(values: Any) -> int:
    return values.buffer_info()[0]
