"""The first of several drafters that has a proposal drafts: prompt lookup where the sequence repeats, else a model.

A lookup costs nothing and is rarely wrong when it matches a long n-gram; elsewhere a trained drafter is better.
"""

from __future__ import annotations

from collections.abc import Sequence

from playground.decoding.drafters import tree
from playground.decoding.drafters.base import NOTHING, Draft, Drafter, rewound
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.ngram import SURE, NgramDrafter
from playground.decoding.sampling import Sampler


class CompositeDrafter(Drafter):
    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    @property
    def cache_bytes(self) -> int:
        return sum(drafter.cache_bytes for drafter in self._drafters)

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        found = NOTHING
        for drafter in self._drafters:
            draft = drafter.propose(ids, k, stop_below, sampler)
            if draft.ids:
                return draft
            found = draft if draft.past_context else found
        return found

    def commit(self, length: int) -> None:
        for drafter in self._drafters:
            drafter.commit(length)

    def rewind(self, length: int) -> int:
        return rewound(self._drafters, length)


def build(setup: Setup) -> CompositeDrafter:
    return CompositeDrafter(NgramDrafter(*SURE), tree.build(setup))
