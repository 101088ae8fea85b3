"""The static runner: passes of a few fixed widths over a KV cache of fixed length, captured once and then replayed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from weakref import ref

import torch
from torch import Tensor
from transformers import PreTrainedModel

from playground.decoding.runners.base import BlockRunner, LayerRunner, RecursiveLayer, Runner, in_place
from playground.decoding.runners.buffers import MOST, WIDTHS, width_of
from playground.decoding.runners.eager import EagerBlock, EagerLayer
from playground.decoding.runners.graphs import Function
from playground.decoding.runners.static_cache import has_growing_rope, why_growing, windows_of
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.runners.static_network import StaticLayerRunner, StaticNetworkRunner
from playground.decoding.transfer import pinned
from playground.models.device import ran_out_of_memory
from playground.models.networks.dflash import DFlash
from playground.models.sizing import cache_bytes


class StaticRunner(Runner):
    """Runs a model over a static cache; `Runner` documents the members. All runners of a model share its cache: one
    that is used again after another gets its entries back.

    Args:
        room: tokens that the sequence is expected to have; the cache grows if there are more.
        widest: tokens of the widest pass.
        whole: the runner of the whole model, if this is one of its first layers.
    """

    def __init__(
        self, static: StaticModel, room: int, widest: int = WIDTHS[-1], whole: StaticRunner | None = None
    ) -> None:
        super().__init__(static.model)
        self._static, self._widest, self._whole = static, width_of(widest), whole
        static.whole.room = max(static.whole.room, room)
        self._saved: list[list[Tensor]] = []  # entries of the model's cache, then of its drafters'
        self._layers: Sequence[int] = ()
        self._drafters: list[StaticNetworkRunner] = []

    @property
    def cache_bytes(self) -> int:
        cache = self._static.cache
        return cache_bytes(cache.states) * self.length // cache.cursor.length  # without the reserved entries

    @property
    def hidden(self) -> Tensor:
        return super().hidden.clone()  # the next pass overwrites the buffer

    @property
    def shared_kv(self) -> dict[str, tuple[Tensor, Tensor]]:
        return self._static.cache.shared_kv(self.length)

    def watch(self, layers: Sequence[int]) -> None:
        self._layers = layers

    def computed(self, tokens: int) -> int:
        return width_of(min(tokens, MOST))

    def run(self, key: Hashable, work: Function, *given: Tensor) -> tuple[Tensor, ...]:
        sent = (pinned(tensor, self.device) for tensor in given)
        return self._static.graphs.call((self._static, key), work, self.device, *sent)

    def run_over_text(self, key: Hashable, work: Function, *given: Tensor) -> tuple[Tensor, ...]:
        """Runs work like `run`, which gets, before `given`, what `StaticModel.over_text` gives it."""
        read = self._static.bucket(self.length)
        run = partial(self._static.over_text, work, read)
        return self.run((key, read), run, torch.tensor([self.length]), *given)

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        if why_growing(layer.config) or any(windows_of(layer.config)):
            return EagerLayer(layer)
        runner = StaticLayerRunner(self._static.layer(layer))
        self._drafters.append(runner)
        return runner

    def block(self, network: DFlash) -> BlockRunner:
        if has_growing_rope(network.config):
            return EagerBlock(network)
        runner = StaticNetworkRunner(self._static.block(network))
        self._drafters.append(runner)
        return runner

    def first_layers(self, layers: PreTrainedModel) -> StaticRunner:
        return StaticRunner(self._static.first_layers(layers), 0, whole=self)

    @torch.inference_mode()
    def prepare(self) -> None:
        (self._whole or self)._take()
        hidden, room = self._static.watch(self._layers), max(self._static.whole.room, self.length)
        self._static.prepare(self.length, room + self._widest, self._widest)
        for runner in self._drafters:
            assert hidden is not None, "what drafts from hidden states watches them"
            runner.prepare(hidden)
        self._static.fulfil(self.length)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int] | Tensor, keep: int, tree: Sequence[int] | None = None) -> Tensor:
        static = self._static
        if self.length:
            (self._whole or self)._take()
            static.watch(self._layers)
        else:
            self.prepare()
            static.cache.clear()
        self.passes += 1
        logits, self._hidden = self._fed(ids, keep, tree or ())
        self.length += len(ids)
        return logits.to(torch.float32, copy=True)  # the next pass overwrites the buffer

    def _fed(self, ids: Sequence[int] | Tensor, keep: int, tree: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Returns the last `keep` logits, and the hidden states. A prompt is read in the same way in all lanes, later
        tokens in passes of fixed widths."""
        static, n = self._static, len(ids)
        if not self.length and not tree and not isinstance(ids, Tensor) and n > WIDTHS[-1]:
            return static.wide(ids, keep)
        if n <= MOST:
            logits, hidden = static.narrow(ids, self.length, tree)
            return logits[-keep:], hidden
        parts, states, start = [], [], 0
        for end in sorted(range(n, 0, -MOST)):  # the last part contains the whole tree
            logits, hidden = static.narrow(ids[start:end], self.length + start, tree if end == n else ())
            parts.append(logits.clone())
            states += [] if hidden is None else [hidden.clone()]
            start = end
        return torch.cat(parts)[-keep:], torch.cat(states) if states else None

    @torch.inference_mode()
    def drafted(
        self, key: Hashable, work: Function, passes: int, logits: Tensor, numbers: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        """Drafts a chain after `forward`, with so many passes, without the host between them; see
        `StaticModel.drafted`. The cache then holds the tokens of the passes."""
        found = self._static.drafted(key, work, self.length, passes, logits, numbers, *given)
        self.length += passes
        self.passes += passes
        return found

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        if not self.length:  # an assistant that has not drafted yet
            return
        (self._whole or self)._take()
        if not in_place(path):
            self._static.move(length, path)
        self._roll_back(length, path)

    def _take(self) -> None:
        """Takes the model's cache. The runner that had it, if it still exists, copies its entries before."""
        static, user = self._static, self._static.user()
        if user is self:
            return
        if user is not None:
            user._save()
        static.user = ref(self)
        static.graphs.forget()  # to capture it would overwrite entries
        static.cache.clear()
        if self._saved:
            entries, *others = self._saved
            static.cache.paste(entries)
            for runner, saved in zip(self._drafters, others, strict=True):
                runner.restore(saved)
            self._saved = []

    def _save(self) -> None:
        try:
            self._saved = [self._static.cache.copied(self.length), *(runner.saved() for runner in self._drafters)]
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            self.length = 0  # the next turn reads its text again
