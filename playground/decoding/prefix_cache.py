"""The caches of a conversation's earlier turns, stored with the model and reused by the next turn.

A run stores its target's runner and its drafter here. The lane's next turn takes them, rolls both back to the tokens
that the conversations share, and feeds the rest: no pass computes an earlier turn again. Only tokens of earlier turns
are reused, so that repeating a turn costs the same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from playground.decoding.drafters.base import Drafter, shared
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import seam
from playground.decoding.text import encode_turns
from playground.lane import Request
from playground.models.load import LoadedDrafter, LoadedModel

MOST_BYTES = 2**30  # of all caches stored with a model; the oldest are dropped first


@dataclass
class CachedPrefix:
    """The stored caches of a run. `ids`: the tokens in the target's cache. `drafting`: the drafter's weights."""

    ids: list[int]
    target: Runner
    drafter: Drafter
    drafting: LoadedModel | LoadedDrafter | None

    @property
    def bytes(self) -> int:
        return self.target.cache_bytes + self.drafter.cache_bytes

    def rolled_back(self, length: int) -> int:
        """Rolls both back to the first `length` tokens, or to fewer where the drafter needs that; returns how many the
        target holds, 0 if they cannot be rolled back."""
        if not 0 < length <= self.target.length:
            return 0
        held = self.drafter.rewind(length)
        if held:
            self.target.commit(held)
        return held


def reusable(tokenizer: PreTrainedTokenizerBase, request: Request, prompt_ids: Sequence[int]) -> int:
    """Returns how many tokens of the prompt belong to earlier turns; 0 where the request has none, or reuses none."""
    if not request.prefix_cache or not request.earlier:
        return 0
    return min(
        shared(encode_turns(tokenizer, request, request.earlier, open_end=False), prompt_ids), len(prompt_ids) - 1
    )


def take(
    model: LoadedModel,
    key: Hashable,
    drafting: LoadedModel | LoadedDrafter | None,
    prompt_ids: Sequence[int],
    most: int,
) -> tuple[CachedPrefix | None, int]:
    """Takes the caches stored under the key, rolled back to at most `most` tokens of the prompt, and returns them with
    the number of tokens that they hold; None and 0 where nothing can be reused."""
    cached: CachedPrefix | None = model.prefix_caches.pop(key, None) if most else None
    if cached is None or cached.drafting is not drafting:
        return None, 0
    held = cached.rolled_back(min(most, shared(cached.ids, prompt_ids)))
    return (cached, held) if held else (None, 0)


def store(model: LoadedModel, key: Hashable, cached: CachedPrefix) -> None:
    """Stores a run's caches, if they can be rolled back: a recurrent state cannot, a sliding window only in a static
    cache."""
    if cached.target.discards_old or seam(model.model.config) < sys.maxsize:
        return
    model.prefix_caches[key] = cached
    while sum(each.bytes for each in model.prefix_caches.values()) > MOST_BYTES:
        model.prefix_caches.pop(next(iter(model.prefix_caches)))


def forget(*models: Any) -> None:
    """Frees the caches that are stored with these models."""
    for model in models:
        if isinstance(model, LoadedModel):
            model.prefix_caches.clear()
