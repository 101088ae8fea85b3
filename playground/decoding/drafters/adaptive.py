"""Several drafters, of which that one drafts that has given the most tokens a second in this run.

Whether a lookup that costs nothing is better than a model that knows more is a matter of the text, of the machine and
of the place in the text. It is measured here: a round, from its start until its tokens are known, counts for the
drafter that drafted it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playground.decoding.drafters import tree
from playground.decoding.drafters.base import NOTHING, Draft, Drafter
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.ngram import SURE, NgramDrafter

KEEP = 0.9  # a round counts so many times what the next one does
AGAIN = 16  # rounds without a draft behind which a drafter is asked first


@dataclass
class Record:
    """What the rounds of a drafter have given, in sums that fade. `idle`: the rounds since its last."""

    drafter: Drafter
    tokens: float = 0.0
    seconds: float = 0.0
    idle: int = sys.maxsize

    @property
    def place(self) -> tuple[bool, float]:
        """The smaller, the sooner it is asked."""
        return self.idle < AGAIN, -self.tokens / self.seconds if self.seconds else 0.0


class AdaptiveDrafter(Drafter):
    """Asks one drafter after the other, the fastest first, until one has something to propose. One that has not drafted
    for a while goes before all others, since its time may have come.

    Args:
        drafters: in the order in which they are tried at first.
        clock: in seconds.
    """

    def __init__(self, *drafters: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._records = [Record(drafter) for drafter in drafters]
        self._clock = clock
        self._drafted: Record | None = None
        self._start, self._length = 0.0, 0
        self._prefilled = False

    @property
    def cache_bytes(self) -> int:
        return sum(record.drafter.cache_bytes for record in self._records)

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        self._start, self._length = self._clock(), len(ids)
        self._drafted = None
        for record in sorted(self._records, key=lambda record: record.place):
            draft = record.drafter.propose(ids, k, stop_below)
            if draft.ids:
                self._drafted = record
                return draft
        return NOTHING

    def commit(self, length: int) -> None:
        seconds, tokens = self._clock() - self._start, length - self._length + 1  # with the target's own
        for record in self._records:
            record.drafter.commit(length)
            record.tokens *= KEEP
            record.seconds *= KEEP
            record.idle += 1
        if self._drafted and self._prefilled:  # the first round's time is the prompt's
            self._drafted.tokens += tokens
            self._drafted.seconds += seconds
            self._drafted.idle = 0
        self._prefilled = True


def build(setup: Setup) -> AdaptiveDrafter:
    return AdaptiveDrafter(NgramDrafter(*SURE), tree.build(setup))
