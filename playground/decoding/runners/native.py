"""The native runner: a pass is one call of the CPU engine (`models/cpu/native`), on a cache of its own layout.

Its logits have the same bits at every width, for a chain or a tree, on any number of threads, so that greedy lanes give
the same text. Networks that draft from hidden states are run by torch, over the engine's linear layers.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor
from transformers import PreTrainedModel

from playground.decoding.runners.base import BlockNetwork, RecursiveLayer, not_numbers
from playground.decoding.runners.eager_network import EagerBlock, EagerLayer
from playground.errors import PlaygroundError
from playground.models.attention import context_of, layers_of
from playground.models.cpu.native.library import Cache, Pass, Threads
from playground.models.cpu.native.model import NativeModel

GROUP = 16  # entries whose keys lie side by side
CHUNK = 128  # tokens of a long prompt that a pass reads at once
LEAST, SHARE = 256, 4  # the cache grows by LEAST entries, or by one in SHARE of its entries if that is more


class NativeCache:
    """The keys and values of one sequence, in the layout of engine.h.

    Attributes:
        keys: (layers, groups, room / 16, head, 16).
        values: (layers, groups, room, head).
    """

    def __init__(self, model: NativeModel) -> None:
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

    def gather(self, start: int, path: Sequence[int]) -> None:
        """Moves the entries start + path[i] to start + i."""
        for to, entry in enumerate(path, start):
            at = start + entry
            if at != to:
                self.keys[:, :, to // GROUP, :, to % GROUP] = self.keys[:, :, at // GROUP, :, at % GROUP]
                self.values[:, :, to] = self.values[:, :, at]


class NativeRunner:
    """Runs a model that the engine knows; `Runner` documents the members."""

    recurrent = False
    takes_trees = True
    discards_old = False

    def __init__(self, model: PreTrainedModel, native: NativeModel) -> None:
        self.model = model
        self.length = 0
        self.passes = 0
        self._native = native
        self._cache = NativeCache(native)
        self._watched = array("i")
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._hidden = torch.empty(0, 0)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def vocab_size(self) -> int:
        return self._native.struct.vocabulary

    @property
    def context_limit(self) -> int:
        return context_of(self.model.config)

    @property
    def cache_bytes(self) -> int:
        m = self._native.struct
        return self.length * m.layers * m.groups * m.head * 2 * 4

    @property
    def hidden(self) -> Tensor:
        return self._hidden

    @property
    def shared_kv(self) -> dict[str, tuple[Tensor, Tensor]]:
        raise NotImplementedError("Gemma 4, whose assistants read it, is run by torch")

    def share_kv(self) -> None:
        raise NotImplementedError("Gemma 4, whose assistants read it, is run by torch")

    def watch(self, layers: Sequence[int]) -> None:
        self._watched = array("i", layers)

    def layer(self, layer: RecursiveLayer) -> EagerLayer:
        return EagerLayer(layer)

    def block(self, network: BlockNetwork) -> EagerBlock:
        return EagerBlock(network)

    def first_layers(self, layers: PreTrainedModel) -> NativeRunner:
        view = copy.copy(self)
        view.model, view.passes = layers, 0
        view._native = self._native.first(len(layers_of(layers) or ()))
        view._watched = array("i")
        return view

    def not_numbers(self) -> PlaygroundError:
        return not_numbers(self.model)

    def prepare(self) -> None:
        pass  # the cache grows by itself

    def computed(self, tokens: int) -> int:
        return tokens

    def forward(self, ids: Sequence[int] | Tensor, keep: int, tree: Sequence[int] | None = None) -> Tensor:
        fed = array("i", ids.tolist() if isinstance(ids, Tensor) else ids)
        if fed and not 0 <= min(fed) <= max(fed) < self.vocab_size:
            raise IndexError(f"A token is outside of the vocabulary of {self.vocab_size:,}.")
        self._cache.fit(self.length + len(fed))
        logits = torch.empty(keep, self.vocab_size)
        hidden = torch.empty(len(fed), len(self._watched) * self._native.struct.width)
        whole = max(keep, len(tree or ()), 1)  # tokens at the end that are read in one pass
        done = 0
        while done < len(fed):
            left = len(fed) - done
            now = left if left <= max(CHUNK, whole) else min(CHUNK, left - whole)
            last = done + now == len(fed)
            self._run(fed[done : done + now], keep if last else 0, tree if last else None, logits, hidden[done:])
            done += now
        self.passes += 1
        self._hidden = hidden
        return logits

    def _run(self, ids: array[int], keep: int, tree: Sequence[int] | None, logits: Tensor, hidden: Tensor) -> None:
        """Runs one pass and moves the end of the sequence."""
        functions, model = self._native.engine.functions, self._native.struct
        threads, parents = Threads.number, array("i", tree or ())
        needed = functions.scratch(byref(model), len(ids), self.length + len(ids), threads)
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed + needed // SHARE, dtype=torch.uint8)
        pointers = (each.buffer_info()[0] for each in (ids, parents, self._watched))
        counts = len(ids), len(parents), len(self._watched), self.length, keep
        tensors = logits, hidden, self._scratch
        work = Pass(*pointers, *counts, *(each.data_ptr() for each in tensors))
        functions.run(byref(model), byref(self._cache.struct), byref(work), threads)
        self.length += len(ids)

    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        tail = self.length - length
        self._cache.gather(length, path)
        if self._watched and tail:
            before = max(0, len(self._hidden) - tail)
            kept = [*range(before), *(before + i for i in path)]
            self._hidden = self._hidden[torch.tensor(kept, dtype=torch.int64)] if path else self._hidden[:before]
        self.length = length + len(path)
