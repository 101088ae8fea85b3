"""A multi-token prediction layer drafts recursively from the target's hidden states.

DeepSeek-V3 (2024, section 2.2); the network is in models/networks/mtp.py. Its KV cache holds an entry for each position
that the target has processed. Entries computed from the layer's own hidden states are dropped after each draft, and
replaced by entries from the target's hidden states once it has verified.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import DynamicCache

from playground.decoding.drafters.hidden import HiddenStates, TextVocabulary
from playground.decoding.runners.base import Runner
from playground.decoding.runners.masks import additive
from playground.decoding.transfer import to_device
from playground.models.footprint import cache_bytes
from playground.models.networks.mtp import MtpLayer


class RecursiveLayer(Protocol):
    """A layer that can read its own output as hidden states, such as `MtpLayer`. `draft_ids`: (draft vocabulary,), the
    token id of each column of its logits."""

    draft_ids: torch.Tensor

    def new_cache(self) -> DynamicCache: ...

    def __call__(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        cache: DynamicCache,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class MtpBranches:
    """Grows `Branches` as deep as asked.

    Args:
        target: the runner that the loop uses; its hidden states are watched.
        layers: the target's layers whose hidden states are read, as in `Runner.watch`.
    """

    deepest = sys.maxsize

    def __init__(self, layer: RecursiveLayer, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        self.draft_ids = layer.draft_ids
        self._layer = layer
        self._hidden = HiddenStates(target, layers)
        self._cache = layer.new_cache()
        self._cache.activate_past_recording()
        self._entries = 0  # of the text; entry i is for the token at position i + 1 and the hidden state at position i
        self._window = getattr(self._cache.layers[0], "sliding_window", None)
        self._out: torch.Tensor  # (1, rows, width), the output of the last call
        self._sees: torch.Tensor  # (rows, draft entries), which of the draft's entries are ancestors of each row
        self._positions: torch.Tensor  # (entries,), of text and draft
        self._depth = 0  # of the draft

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        if hidden is None:
            return None
        tokens = to_device([ids[self._entries + 1 :]], hidden.device)
        self._out = self._layer(tokens, hidden[None], self._cache)[:, -1:]
        self._entries = len(ids) - 1
        self._sees = torch.zeros(1, 0, dtype=torch.bool)
        self._depth = 0
        self._positions = torch.arange(self._entries)
        return self._logits()

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        device, n = self._out.device, len(ids)
        self._sees = torch.cat([self._sees.index_select(0, torch.tensor(rows)), torch.eye(n, dtype=torch.bool)], dim=1)
        self._depth += 1
        position = self._entries - 1 + self._depth  # of all new entries
        self._positions = torch.cat([self._positions, torch.full((n,), position)])
        sees = torch.cat([torch.ones(n, self._entries, dtype=torch.bool), self._sees], dim=1)
        if self._window:
            sees = (sees & (position - self._positions < self._window))[:, -(self._window - 1 + n) :]
        mask = to_device(additive(sees, self._out.dtype), device)
        positions = torch.full((1, n), position, device=device)
        tokens, hidden = to_device(ids, device)[None], self._out.index_select(1, to_device(rows, device))
        self._out = self._layer(tokens, hidden, self._cache, positions, mask)
        return self._logits()

    def _logits(self) -> torch.Tensor:
        return self._layer.logits(self._out[0])

    def end(self) -> None:
        self._cache.crop(-self._sees.shape[1])

    def commit(self) -> None:
        self._hidden.commit()


class TrainedBranches(MtpBranches):
    """For a layer that was trained for the target and has a reduced vocabulary."""

    def __init__(self, layer: MtpLayer, target: Runner) -> None:
        super().__init__(layer, target)
        self._vocabulary = TextVocabulary(layer)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        self.draft_ids = self._vocabulary.read(ids)
        return super().root(ids)

    def _logits(self) -> torch.Tensor:
        return self._vocabulary.logits(self._out[0])
