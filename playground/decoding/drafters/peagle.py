"""P-EAGLE drafts several tokens in one pass of an EAGLE-3 head: slots of a mask token after the text.

The network: models/networks/peagle.py. The distribution of a position does not depend on the tokens chosen before it;
samples are verified like any others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.parallel import HiddenParallelBranches
from playground.decoding.runners.base import Runner
from playground.decoding.transfer import to_device
from playground.models.decoder import context_of
from playground.models.footprint import cache_bytes
from playground.models.networks.peagle import PEagleHead


class PEagleBranches(HiddenParallelBranches):
    """Keeps the cache entries of the text across rounds, and drops those of the slots when their draft is done."""

    def __init__(self, head: PEagleHead, target: Runner) -> None:
        super().__init__(head.draft_ids, head.drafts, target, head.layers)
        self.context = context_of(head.config)
        self._head = head
        self._cache = head.new_cache()
        self._cache.activate_past_recording()
        self._entries = 0  # of the text in its cache

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        tokens = to_device(ids[self._entries + 1 :], hidden.device)
        self._entries = len(ids) - 1
        return self._head.drafted(tokens, hidden, self._cache)

    def end(self) -> None:
        self._cache.crop(1 - self._head.drafts)

    def rewind(self, length: int) -> int:
        """Entry i is of the token at i + 1, so that the last one of the text is not among them."""
        kept = min(self._entries, length - 1)
        if kept < 1 or any(getattr(layer, "sliding_window", None) for layer in self._cache.layers):
            return 0
        super().rewind(kept)
        self._cache.crop(kept - self._entries)
        self._entries = kept
        return kept
