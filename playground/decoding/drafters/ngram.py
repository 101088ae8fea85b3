"""Prompt lookup: the last tokens of the text are looked up earlier in it, and what followed there is the draft.

Apoorv Saxena 2023, "Prompt Lookup Decoding"; transformers' `prompt_lookup_num_tokens`. No model, no cost, and no use
where the text never repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, copied
from playground.decoding.drafters.build import Setup

SURE = (4, 2)  # longest and shortest n-gram to match where a trained drafter is at hand


class NgramDrafter(Drafter):
    """Matches the longest of the n-grams of size `longest` down to `shortest` that has been seen before, at its last
    occurrence.

    transformers takes the first occurrence; the last one follows what the text is doing now. The index is a dictionary
    from n-grams to places: looking up costs the same however long the text is.
    """

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._follows: dict[tuple[int, ...], int] = {}  # n-gram -> where its last occurrence, before the end, goes on
        self._indexed = 0

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        self._index(ids)
        for n in self._sizes:
            start = self._follows.get(tuple(ids[-n:]))
            if start is not None:
                return copied(ids, start, k)
        return NOTHING

    def _index(self, ids: Sequence[int]) -> None:
        """Enters every n-gram that something follows: those that end before the text's last token."""
        for end in range(self._indexed + 1, len(ids)):
            for n in self._sizes:
                if n <= end:
                    self._follows[tuple(ids[end - n : end])] = end
        self._indexed = len(ids) - 1

    def commit(self, length: int) -> None:
        pass  # only committed text is ever indexed


def build(setup: Setup) -> NgramDrafter:
    return NgramDrafter()
