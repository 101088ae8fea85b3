"""Drafters made of several others, and the tokens that a grammar forces.

`CompositeDrafter`: the first drafter that has a proposal drafts: prompt lookup where the sequence repeats, else a
trained drafter. A lookup costs nothing and is rarely wrong when it matches a long n-gram.

`GrammarDrafter`: where the request's grammar allows only one continuation, such as the names of a JSON object, the
tokens need no model. They are drafted as the tokenizer writes the text. The target may write the same text in other
tokens, so they are verified like any draft. Where nothing is forced, the lane's own drafter drafts. It never continues
after forced tokens: most drafters read hidden states, which the target has for those tokens only once it has verified
them.

`AdaptiveDrafter`: of several drafters and plain decoding, the one with the most tokens per second so far drafts next.
Which is fastest depends on the text, on the machine and on its load: on a busy CPU, drafting can be slower than not
drafting. Every round is timed, from its start until its tokens are committed, and counts for the drafter that drafted
it; rounds without a draft count for plain decoding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playground.decoding.drafters import tree
from playground.decoding.drafters.base import NOTHING, Draft, Drafter, NoDrafter
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.lookup import SURE, NgramDrafter
from playground.decoding.grammar import Constraint, Grammar
from playground.decoding.sampling import Sampler


class CompositeDrafter(Drafter):
    """Takes the first non-empty draft of several drafters, in their order."""

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

    def prepare(self) -> None:
        for drafter in self._drafters:
            drafter.prepare()

    def rewind(self, length: int) -> int:
        """Rewinds all drafters, of which at most one reads hidden states."""
        return min(drafter.rewind(length) for drafter in self._drafters)


def build(setup: Setup) -> CompositeDrafter:
    return CompositeDrafter(NgramDrafter(*SURE), tree.build(setup))


class GrammarDrafter(Drafter):
    """Drafts the tokens that the request's grammar forces."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        forced = self._grammar.forced()[: max(k, 0)]
        return Draft(forced, [1.0] * len(forced), forced=len(forced)) if forced else NOTHING

    def rewind(self, length: int) -> int:
        return length


def after_forced(grammar: Grammar, drafter: Drafter) -> Drafter:
    """Returns a drafter for one answer: the grammar, and `drafter` where the grammar forces nothing."""
    return CompositeDrafter(GrammarDrafter(grammar), drafter) if isinstance(grammar, Constraint) else drafter


KEEP = 0.9  # weight of a round, relative to the next one
TRIES = 2  # rounds of each drafter before it is judged
AGAIN = 16  # rounds without a draft after which a drafter is tried again
SHARE = 0.03  # share of the run's time: while drafting has cost more than this, nothing is tried again


@dataclass
class Arm:
    """A drafter and the exponentially decaying sums of its rounds. `idle`: rounds since its last one."""

    drafter: Drafter
    tokens: float = 0.0
    seconds: float = 0.0
    tries: int = 0
    idle: int = sys.maxsize

    @property
    def rate(self) -> float:
        """The drafter's tokens per second; 0 before its first round."""
        return self.tokens / self.seconds if self.seconds else 0.0


class AdaptiveDrafter(CompositeDrafter):
    """Tries the drafters in the order of their tokens per second, until one proposes something or it is the turn of
    plain decoding.

    A drafter that has not drafted for AGAIN rounds is tried first, since the text may suit it by now; but not while
    drafting has made the run slower than plain decoding by more than SHARE.

    Args:
        drafters: the drafters, in the order in which they are tried at first.
        clock: returns the time in seconds.
    """

    def __init__(self, *drafters: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(*drafters)
        self._clock = clock
        self._start, self._length = 0.0, 0
        self._begin()

    def _begin(self) -> None:
        """Resets the statistics of all drafters."""
        self._plain = Arm(NoDrafter())
        self._arms = [self._plain, *map(Arm, self._drafters)]
        self._last: Arm | None = None  # the arm that drafted last; None in a round that a grammar drafted
        self._elapsed = self._lost = 0.0  # seconds of all rounds; seconds lost to drafting
        self._prefilled = False

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        self._start, self._length = self._clock(), len(ids)
        found = NOTHING
        for arm in sorted(self._arms, key=lambda arm: (not self._is_due(arm), -arm.rate)):
            draft = arm.drafter.propose(ids, k, stop_below, sampler)
            found = draft if draft.ids or draft.past_context else found
            if draft.ids or arm is self._plain:
                break
        self._last = arm
        return found

    def _is_due(self, arm: Arm) -> bool:
        affordable = arm is self._plain or self._lost <= SHARE * self._elapsed
        return arm.tries < TRIES or (arm.idle >= AGAIN and affordable)

    def commit(self, length: int) -> None:
        seconds, tokens = self._clock() - self._start, length - self._length + 1  # with the target's own token
        for arm in self._arms:
            arm.drafter.commit(length)
            arm.tokens *= KEEP
            arm.seconds *= KEEP
            arm.idle += 1
        last, self._last = self._last, None
        if self._prefilled and last:  # the first round includes the prefill
            last.tokens += tokens
            last.seconds += seconds
            last.tries, last.idle = last.tries + 1, 0
            self._elapsed += seconds
            self._lost += seconds - tokens / self._plain.rate
        self._prefilled = True

    def rewind(self, length: int) -> int:
        """Rewinds all drafters and resets their statistics, so that a run does not depend on those before it."""
        self._begin()
        return super().rewind(length)


def build_adaptive(setup: Setup) -> AdaptiveDrafter:
    return AdaptiveDrafter(NgramDrafter(*SURE), tree.build(setup))
