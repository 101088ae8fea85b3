"""The static runner: passes of a few fixed widths over a KV cache of fixed length, captured once and then replayed.

A pass is padded to the next width, and the rows of the padding are dropped. A longer pass, such as the prefill of a
long prompt, runs eagerly over the same cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.decoding.runners.base import FULL, BlockNetwork, BlockRunner, LayerRunner, RecursiveLayer, not_numbers
from playground.decoding.runners.buffers import MOST, WIDTHS, Inputs
from playground.decoding.runners.capture import watched_modules, watching
from playground.decoding.runners.eager_block import EagerBlock
from playground.decoding.runners.eager_layer import EagerLayer
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.masks import additive, ancestry, tree_masks
from playground.decoding.runners.static_block import StaticBlock, StaticBlockRunner
from playground.decoding.runners.static_cache import StaticCache, has_growing_rope, why_growing
from playground.decoding.runners.static_layer import StaticLayer, StaticLayerRunner
from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError
from playground.models.decoder import layers_of
from playground.models.footprint import cache_bytes

LEAST = 256  # entries of a cache; longer ones double, so that requests of about one length share their graphs


class StaticModel:
    """A model with its static cache, its buffers and its graphs. Outlives the runs; one runner uses it at a time.

    `runner`: the one that uses it.
    """

    def __init__(self, model: PreTrainedModel, graphs: Graphs, whole: StaticModel | None = None) -> None:
        """`whole`: what `model` is the first layers of, if it is."""
        config = model.config.get_text_config(decoder=True)
        self.model, self.graphs = model, graphs
        self._count = len(layers_of(model) or ()) if whole else config.num_hidden_layers
        self.cache: StaticCache = whole.cache.first_layers(self._count) if whole else StaticCache(self._count, LEAST)
        self.runner: StaticRunner | None = None
        self._whole = whole or self
        self._limit = getattr(config, "max_position_embeddings", None) or sys.maxsize
        self._views: dict[int, StaticModel] = {}
        self._layers_beside: dict[RecursiveLayer, StaticLayer] = {}
        self._blocks_beside: dict[BlockNetwork, StaticBlock] = {}
        self._watched: list[nn.Module] = []
        self._layers: tuple[int, ...] = ()
        self._hidden: dict[tuple[int, ...], Tensor] = {}  # (MOST, layers x width) for each choice of layers
        self._inputs = Inputs(3, MOST, torch.int64, model.device)  # token ids, positions, slots
        self._moves = Inputs(2, MOST, torch.int64, model.device)  # entries of an accepted branch: from where, to where
        self._among = Inputs(MOST, MOST, model.dtype, model.device)  # added to the scores among a pass's own tokens
        self._holds_tree = True  # so that the first chain writes the buffer
        self._logits = torch.zeros(MOST, config.vocab_size, device=model.device)
        self._allocate()

    def _allocate(self) -> None:
        length, device = self.cache.cursor.length, self.model.device
        self._entries = torch.arange(length, device=device)
        self._mask = torch.zeros(MOST, length, dtype=self.model.dtype, device=device)

    def first_layers(self, model: PreTrainedModel) -> StaticModel:
        """The model's first layers on the same entries, with buffers of their own."""
        count = len(layers_of(model) or ())
        if count not in self._views:
            self._views[count] = StaticModel(model, self.graphs, whole=self)
        return self._views[count]

    def layer(self, layer: RecursiveLayer) -> StaticLayer:
        """A layer that drafts from the model's hidden states, with buffers and a cache of its own."""
        if layer not in self._layers_beside:
            self._layers_beside[layer] = StaticLayer(layer, self.cache.cursor, self.graphs, self._limit)
        return self._layers_beside[layer]

    def block(self, network: BlockNetwork) -> StaticBlock:
        """The same of a network that drafts a block at once."""
        if network not in self._blocks_beside:
            self._blocks_beside[network] = StaticBlock(network, self.cache.cursor, self.graphs)
        return self._blocks_beside[network]

    def begin(self, runner: StaticRunner, room: int) -> None:
        """Makes it the runner's, with entries for a sequence of `room` tokens, and captures what is missing."""
        self.runner = runner
        self._whole.resize(max(LEAST, _power_of_two(room + MOST)))
        if not self.cache.tensors:
            self.wide([0], 0, keep=1)  # allocates them
        for width in WIDTHS:
            if self.graphs.lacks(self._key(width)):
                self.narrow([0] * width, 0)
        self.cache.clear()

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens and the padding of a pass."""
        if length + MOST > self.cache.cursor.length:
            self._whole.resize(_power_of_two(length + MOST))

    def resize(self, length: int) -> None:
        if length != self.cache.cursor.length:
            self.cache.resize(length)
            self.graphs.clear()
            for static in (self, *self._views.values()):
                static._allocate()

    def watch(self, layers: Sequence[int]) -> None:
        """As `Runner.watch`."""
        self._layers = tuple(layers)
        self._watched = watched_modules(self.model, layers)
        if layers and self._layers not in self._hidden:
            width = self.model.config.get_text_config(decoder=True).hidden_size
            self._hidden[self._layers] = torch.zeros(
                MOST, len(layers) * width, dtype=self.model.dtype, device=self.model.device
            )

    def narrow(self, ids: Sequence[int], start: int, tree: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """A pass over at most MOST tokens from entry `start` on, at a fixed width. `tree`: as in `Runner.forward`.

        Returns:
            Logits of the tokens, and their hidden states if any are watched. The next pass overwrites both.
        """
        n, before = len(ids), len(ids) - len(tree)
        width = next(width for width in WIDTHS if width >= n)
        depths = list(range(width))
        for i, parent in enumerate(tree):
            depths[before + i] = depths[before + parent] + 1
        positions = [min(start + depth, self._limit - 1) for depth in depths]
        self._inputs.send([*ids, *[0] * (width - n)], positions, range(start, start + width))
        if tree or self._holds_tree:
            among = torch.ones(MOST, MOST, dtype=torch.bool).tril()
            among[before:n, before:n] = ancestry(tree)
            self._among.send_rows(additive(among, self.model.dtype)[0, 0])
            self._holds_tree = bool(tree)
        self.cache.cursor.slots, self.cache.cursor.read = self._inputs.rows[2, :width], len(self._entries)
        with self._watching():
            self.graphs.run(self._key(width), partial(self._pass, width))
        hidden = self._hidden[self._layers][:n] if self._layers else None
        return self._logits[:n], hidden

    def _key(self, width: int) -> tuple[int, int, tuple[int, ...]]:
        return self._count, width, self._layers

    def _pass(self, width: int) -> None:
        """What is captured: reads and writes the buffers alone."""
        ids, positions, slots = self._inputs.rows[:, :width]
        mask = self._mask[:width]
        mask.fill_(torch.finfo(mask.dtype).min)
        mask.masked_fill_(self._entries < slots[0], 0)
        mask.index_copy_(1, slots, self._among.rows[:width, :width])
        out = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=mask[None, None],
            past_key_values=self.cache.states,
            use_cache=True,
        )
        self._logits[:width].copy_(out.logits[0])

    def wide(self, ids: Sequence[int], start: int, keep: int, tree: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """A pass over any number of tokens, never captured. Returns as `narrow`, with the last `keep` logits."""
        device, end = self.model.device, start + len(ids)
        self.cache.cursor.slots, self.cache.cursor.read = torch.arange(start, end, device=device), end
        mask, positions = None, torch.arange(len(ids))  # causal, in the prefill
        if start or tree:
            masks, positions = tree_masks(start, len(ids) - len(tree), tree, {FULL: 0})
            mask = to_device(additive(masks[FULL], self.model.dtype), device)
        seen: dict[int, Tensor] = {}
        with watching(self._watched, seen.__setitem__):
            out = self.model(
                input_ids=to_device([ids], device),
                position_ids=to_device(positions[None], device),
                attention_mask=mask,
                past_key_values=self.cache.states,
                use_cache=True,
                logits_to_keep=keep,
            )
        hidden = torch.cat([seen[i] for i in range(len(seen))], dim=-1) if seen else None
        return out.logits[0], hidden

    def move(self, start: int, rows: Sequence[int], hidden: Tensor | None) -> None:
        """Moves the entries `start` + `rows` to `start` and after it. `hidden`: the rows of the same tokens, which move
        alike."""
        n = len(rows)
        source = [start + row for row in rows]
        to = range(start, start + MOST)
        self._moves.send([*source, *to[n:]], to)  # those after the branch move to where they are
        self.graphs.run("move", lambda: self.cache.move(self._moves.rows[0], self._moves.rows[1]))
        if hidden is not None:
            hidden[:n] = hidden.index_select(0, self._moves.rows[0, :n] - start)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        into = self._hidden.get(self._layers)

        def keep(i: int, output: Tensor) -> None:
            assert into is not None
            tokens, width = output.shape
            into[:tokens, i * width : (i + 1) * width].copy_(output)

        with watching(self._watched, keep):
            yield


class StaticRunner:
    """Runs a model with full attention; `Runner` documents the members.

    Args:
        room: tokens that the sequence is going to have; the cache grows if there are more.
    """

    recurrent, discards_old, takes_trees = False, False, True

    def __init__(self, static: StaticModel, room: int) -> None:
        self.length = 0
        self.passes = 0
        self._static, self._room = static, room
        self._layers: Sequence[int] = ()
        self._hidden: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self._static.model.device

    @property
    def vocab_size(self) -> int:
        return self._static.model.config.get_text_config(decoder=True).vocab_size

    @property
    def context_limit(self) -> int:
        config = self._static.model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None) or sys.maxsize

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._static.cache.states)

    @property
    def hidden(self) -> Tensor:
        assert self._hidden is not None, "watched, after a pass"
        return self._hidden.clone()  # the next pass overwrites the buffer

    @property
    def shared_kv(self) -> dict[str, tuple[Tensor, Tensor]]:
        layer = self._static.cache.layers[-1]
        return {FULL: (layer.keys[:, :, : self.length], layer.values[:, :, : self.length])}

    def share_kv(self) -> None:
        pass  # nothing slides

    def watch(self, layers: Sequence[int]) -> None:
        self._layers = layers

    def not_numbers(self) -> PlaygroundError:
        return not_numbers(self._static.model)

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        return EagerLayer(layer) if why_growing(layer.config) else StaticLayerRunner(self._static.layer(layer))

    def block(self, network: BlockNetwork) -> BlockRunner:
        return (
            EagerBlock(network) if has_growing_rope(network.config) else StaticBlockRunner(self._static.block(network))
        )

    def first_layers(self, layers: PreTrainedModel) -> StaticRunner:
        return StaticRunner(self._static.first_layers(layers), self._room)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int, tree: Sequence[int] | None = None) -> Tensor:
        static = self._static
        static.watch(self._layers)
        if not self.length:
            static.begin(self, self._room)
        assert static.runner in (self, None), "one runner at a time"
        static.reserve(self.length + len(ids))
        self.passes += 1
        if len(ids) > MOST:
            logits, self._hidden = static.wide(ids, self.length, keep, tree or ())
        else:
            logits, self._hidden = static.narrow(ids, self.length, tree or ())
        self.length += len(ids)
        return logits[-keep:].to(torch.float32, copy=True)  # the next pass overwrites the buffer

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        if not self.length:  # an assistant that has not drafted yet
            return
        tail = self.length - length
        if list(path) != list(range(len(path))):  # a chain, and a tree's first branch, are in place already
            rows = None if self._hidden is None else self._hidden[len(self._hidden) - tail :]
            self._static.move(length, path, rows)
        self.length = length + len(path)
        if self._hidden is not None:
            self._hidden = self._hidden[: len(self._hidden) - tail + len(path)]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
