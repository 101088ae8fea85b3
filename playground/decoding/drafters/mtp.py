"""A multi-token prediction layer drafts recursively from the target's hidden states.

DeepSeek-V3 (2024, section 2.2); the network is in models/networks/mtp.py. Its KV cache holds an entry for each position
that the target has processed. Entries computed from the layer's own hidden states are dropped after each draft, and
replaced by entries from the target's hidden states once it has verified.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from playground.decoding.drafters.hidden import HiddenStates, TextVocabulary
from playground.decoding.runners.base import RecursiveLayer, Runner
from playground.models.decoder import context_of
from playground.models.networks.mtp import MtpLayer


class MtpBranches:
    """Grows `Branches` as deep as asked.

    Args:
        target: the runner that the loop uses; its hidden states are watched, and the layer is run as it is.
        layers: the target's layers whose hidden states are read, as in `Runner.watch`.
    """

    deepest = sys.maxsize
    confidence: torch.Tensor | None = None

    def __init__(self, layer: RecursiveLayer, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        self.draft_ids, self.context = layer.draft_ids, context_of(layer.config)
        self._hidden = HiddenStates(target, layers)
        self._layer = target.layer(layer)
        self._entries = 0  # of the text in its cache

    @property
    def cache_bytes(self) -> int:
        return self._layer.cache_bytes

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden.take()
        if hidden is None:
            return None
        tokens = ids[self._entries + 1 :]
        self._entries = len(ids) - 1
        return self._logits(*self._layer.read(tokens, hidden))

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return self._logits(*self._layer.grow(ids, rows))

    def _logits(self, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The logits to draft from. `logits`, `out`: what a pass returns."""
        return logits

    def end(self) -> None:
        self._layer.end()

    def commit(self) -> None:
        self._hidden.commit()

    def rewind(self, length: int) -> int:
        """Entry i is of the token at i + 1, so that the last one of the text is not among them."""
        self._entries = self._layer.rewind(min(self._entries, length - 1))
        self._hidden.drop()
        return self._entries


class TrainedBranches(MtpBranches):
    """For a layer that was trained for the target and has a reduced vocabulary."""

    def __init__(self, layer: MtpLayer, target: Runner) -> None:
        super().__init__(layer, target)
        self._vocabulary = TextVocabulary(layer)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        self.draft_ids = self._vocabulary.read(ids)
        return super().root(ids)

    def rewind(self, length: int) -> int:
        self._vocabulary.clear()
        return super().rewind(length)

    def _logits(self, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self._vocabulary.extended(logits, out)
