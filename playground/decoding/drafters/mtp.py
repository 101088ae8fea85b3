"""Recursive drafters that read the target's hidden states: multi-token prediction layers and EAGLE-3 heads.

A single MTP layer drafts recursively (DeepSeek-V3, 2024, section 2.2; the network: models/networks/mtp.py). Its KV
cache holds an entry for each position that the target has processed. Entries computed from the layer's own hidden
states are dropped after each draft, and replaced by entries from the target's hidden states once it has verified.

An EAGLE-3 head (Li et al. 2025; models/networks/eagle3.py) differs from an MTP layer only in the hidden states that it
reads, those of three of the target's layers.

Several MTP layers that come with the target (`NativeLayers`) draft one token of the chain each. Layer
k's KV cache holds an entry for each position i whose token i + k + 1 is in the text. Up to k further entries depend on
draft tokens and are dropped after each draft. A layer that a round does not reach catches up in the next one that does.
After the last layer's token, the last layer continues recursively.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from transformers.cache_utils import DynamicLayer

from playground.decoding.drafters.base import NOTHING, Branches, Captured, Draft
from playground.decoding.drafters.hidden import HiddenBranches, TextVocabulary
from playground.decoding.runners.base import RecursiveLayer, Runner
from playground.decoding.runners.native import NativeLayerRunner, Wanted
from playground.decoding.runners.static_network import StaticLayerRunner
from playground.decoding.transfer import to_device
from playground.models.attention import context_of
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.mtp import MtpLayer, NativeLayer, NativeLayers
from playground.models.sizing import cache_bytes


class MtpBranches(HiddenBranches):
    """Grows `Branches` of any depth.

    Args:
        target: the decode loop's runner. Its hidden states are watched, and it makes the runner of the layer.
        layers: the target's layers whose hidden states are read, in the form of `Runner.watch`.
    """

    def __init__(self, layer: RecursiveLayer, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        self.draft_ids, self.context = layer.draft_ids, context_of(layer.config)
        super().__init__(target, layers)
        self._layer = target.layer(layer)
        self._entries = 0  # entries of the text in the layer's cache
        self._first: tuple[torch.Tensor, torch.Tensor]  # the layer's logits and output after the text

    @property
    def cache_bytes(self) -> int:
        return self._layer.cache_bytes

    @property
    def captured(self) -> Captured | None:
        return self._layer.drafted if isinstance(self._layer, StaticLayerRunner) else None

    def read(self, ids: Sequence[int]) -> bool:
        hidden = self._hidden()
        if hidden is None:
            return False
        self._first = self._layer.read(self._new(ids), hidden)
        return True

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        return self._logits(*self._first) if self.read(ids) else None

    def drafted(self, ids: Sequence[int], wanted: Wanted) -> Draft | None:
        if not isinstance(self._layer, NativeLayerRunner):
            return None
        hidden = self._hidden()
        if hidden is None:
            return NOTHING
        grown = self._layer.draft(self._new(ids), hidden, wanted)
        tree, rows = grown.parents if wanted.width > 1 else None, [grown.logits[row] for row in grown.rows]
        return Draft(grown.ids, grown.q, tree=tree, candidates=rows, draft_ids=self.draft_ids)

    def _new(self, ids: Sequence[int]) -> Sequence[int]:
        """Returns the tokens of the text that the layer has not read."""
        tokens = ids[self._entries + 1 :]
        self._entries = len(ids) - 1
        return tokens

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return self._logits(*self._layer.grow(ids, rows))

    def _logits(self, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Returns the logits to draft from, given the logits and the output of a pass of the layer."""
        return logits

    def end(self) -> None:
        self._layer.end()

    def rewind(self, length: int) -> int:
        """Implements `Drafter.rewind`. Entry i is for the token at i + 1, so there is none for the last token."""
        self._entries = self._layer.rewind(min(self._entries, length - 1))
        super().rewind(length)
        return self._entries


class TrainedBranches(MtpBranches):
    """Grows `Branches` with a layer that was trained for the target and has a reduced vocabulary."""

    def __init__(self, layer: MtpLayer, target: Runner) -> None:
        super().__init__(layer, target, layer.layers)
        native = self._layer.vocabulary if isinstance(self._layer, NativeLayerRunner) else None
        self._vocabulary = native or TextVocabulary(layer)

    @property
    def captured(self) -> Captured | None:
        drafted, vocabulary = super().captured, self._vocabulary
        if drafted is None or not isinstance(vocabulary, TextVocabulary):
            return None
        return partial(drafted, further=vocabulary.further)

    def _new(self, ids: Sequence[int]) -> Sequence[int]:
        self.draft_ids = self._vocabulary.read(ids)
        return super()._new(ids)

    def rewind(self, length: int) -> int:
        self._vocabulary.clear()
        return super().rewind(length)

    def _logits(self, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self._vocabulary.extended(logits, out)


class Eagle3Branches(MtpBranches):
    """Grows `Branches` with an EAGLE-3 head."""

    def __init__(self, head: Eagle3Head, target: Runner) -> None:
        super().__init__(head, target, head.layers)


class NativeBranches(HiddenBranches):
    """`Branches` that grow a chain of any depth with several layers of the target.

    Args:
        target: the decode loop's runner, whose hidden states are watched.
    """

    def __init__(self, layers: NativeLayers, target: Runner) -> None:
        self.draft_ids, self.context = layers.draft_ids, context_of(layers.config)
        self._layers = layers
        super().__init__(target)
        self._cache = layers.new_cache()
        self._cache.activate_past_recording()
        self._entries = [0] * layers.count  # for each layer, the entries that the text without a draft determines
        # (1, positions, width), the input of each layer at the positions after those entries
        self._waiting = [torch.empty(1, 0, 0)] * layers.count
        self._text: torch.Tensor  # (tokens,), draft included
        self._positions = 0  # positions of the text that have a hidden state of the target
        self._out: torch.Tensor  # (1, positions, width), the output of the last call

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden()
        if hidden is None:
            return None
        self._text = to_device(list(ids), hidden.device)
        self._positions = len(ids) - 1
        self._waiting[0] = hidden[None]
        return self._drafted_by(0)

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        self._text = torch.cat([self._text, to_device(ids, self._text.device)])
        depth = len(self._text) - self._positions - 1
        if depth < self._layers.count:
            return self._drafted_by(depth)
        return self._run(self._layers.count - 1, self._out[:, -1:])

    def _drafted_by(self, k: int) -> torch.Tensor:
        hidden, start = self._waiting[k], self._entries[k]
        logits = self._run(k, hidden)
        self._entries[k] = self._determined(k)
        self._waiting[k] = hidden[:, self._entries[k] - start :]
        if k + 1 < self._layers.count:
            before = self._waiting[k + 1]
            self._waiting[k + 1] = torch.cat([before, self._out], dim=1) if before.shape[1] else self._out
        return logits

    def _run(self, k: int, hidden: torch.Tensor) -> torch.Tensor:
        tokens = self._text[None, -hidden.shape[1] :]
        self._out = self._layers.run(k, tokens, hidden, self._cache)
        return self._layers.logits(self._out[0, -1:])

    def _determined(self, k: int) -> int:
        """Returns the number of entries of layer k that the text without a draft determines."""
        return max(0, self._positions - k)

    def end(self) -> None:
        for k, entries in enumerate(self._entries):
            layer = self._cache.layers[k]
            assert isinstance(layer, DynamicLayer), "transformers' MTP layers are attention layers"
            if layer.is_initialized:
                layer.crop(entries - layer.get_seq_length())
            if k:
                self._waiting[k] = self._waiting[k][:, : self._determined(k - 1) - entries]

    def rewind(self, length: int) -> int:
        return 0  # each layer's cache covers another part of the text


def branches(network: MtpLayer | NativeLayers, target: Runner) -> Branches:
    """Makes the `Branches` of MTP layers: one trained for the target, or one or several of the target's own."""
    if isinstance(network, MtpLayer):
        return TrainedBranches(network, target)
    return MtpBranches(network, target) if isinstance(network, NativeLayer) else NativeBranches(network, target)
