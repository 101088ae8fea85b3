"""Prompt lookup: finds the last tokens earlier in the sequence; the tokens that followed them there are the draft.

Apoorv Saxena 2023, "Prompt Lookup Decoding"; transformers' `prompt_lookup_num_tokens`. It needs no model, costs
nothing, and drafts nothing where the sequence never repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, copied
from playground.decoding.drafters.build import Setup
from playground.decoding.sampling import Sampler

SURE = (4, 2)  # longest and shortest n-gram to match where a trained drafter is available


class NgramDrafter(Drafter):
    """Matches n-grams of size `longest` down to `shortest`, the longest first, at their last earlier occurrence.

    transformers takes the first occurrence; the last one is closer to the current topic. The index is a dictionary from
    n-grams to positions, so the cost of a lookup does not depend on the length of the sequence.
    """

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._follows: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last earlier occurrence
        self._indexed = 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        self._index(ids)
        for n in self._sizes:
            start = self._follows.get(tuple(ids[-n:]))
            if start is not None:
                return copied(ids, start, k)
        return NOTHING

    def _index(self, ids: Sequence[int]) -> None:
        """Indexes every n-gram that a token follows: those that end before the last token."""
        for end in range(self._indexed + 1, len(ids)):
            for n in self._sizes:
                if n <= end:
                    self._follows[tuple(ids[end - n : end])] = end
        self._indexed = len(ids) - 1

    def rewind(self, length: int) -> int:
        """Clears the index, which holds only the last position of each n-gram and so cannot be rolled back."""
        self._follows.clear()
        self._indexed = 0
        return length


def build(setup: Setup) -> NgramDrafter:
    return NgramDrafter()
