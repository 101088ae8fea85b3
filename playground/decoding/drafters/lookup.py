"""Lookups: the tokens that followed the last tokens earlier in the sequence are the draft.

They need no model, cost nothing, and draft nothing where the sequence never repeats.

- `NgramDrafter`, prompt lookup, matches a few tokens: Apoorv Saxena 2023, "Prompt Lookup Decoding"; transformers'
  `prompt_lookup_num_tokens`.
- `SuffixDrafter` finds the longest suffix that occurred before: Hu et al. 2024, "SAM Decoding", and Oliaro et al. 2024,
  "SuffixDecoding". A suffix automaton (Blumer et al. 1985) knows every substring of the sequence; adding a token takes
  constant time on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, copied
from playground.decoding.drafters.build import Setup
from playground.decoding.sampling import Sampler
from playground.drafting_methods import MATCHED

SURE = (4, 2)  # longest and shortest n-gram to match where a trained drafter is available


class NgramDrafter(Drafter):
    """Matches n-grams of size `longest` down to `shortest`, the longest first, at their last earlier occurrence.

    transformers takes the first occurrence; the last one is closer to the current topic. The index is a dictionary from
    n-grams to positions, so the cost of a lookup does not depend on the length of the sequence.
    """

    def __init__(self, longest: int = MATCHED[0], shortest: int = MATCHED[1]) -> None:
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


class SuffixDrafter(Drafter):
    """Drafts whenever a suffix of the sequence occurred before."""

    def __init__(self) -> None:
        self._seen = SuffixAutomaton()

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        for id_ in ids[self._seen.length :]:
            self._seen.append(id_)
        length, next_ = self._seen.longest_match()
        if not length:
            return NOTHING
        return copied(ids, next_, k)

    def rewind(self, length: int) -> int:
        self._seen = SuffixAutomaton()
        return length


@dataclass
class State:
    """A state of the automaton: the substrings that end at the same positions.

    Attributes:
        length: the tokens of the longest one.
        next: the position after the first occurrence.
        link: the state of their longest suffix that ends at other positions as well.
        follows: token -> state.
    """

    length: int
    next: int
    link: int
    follows: dict[int, int]


class SuffixAutomaton:
    """A suffix automaton: it recognises all substrings of a growing sequence."""

    def __init__(self) -> None:
        self.length = 0
        self._states = [State(0, 0, -1, {})]
        self._last = 0

    def append(self, id_: int) -> None:
        states, at = self._states, self._last
        self.length += 1
        new = self._last = len(states)
        states.append(State(self.length, self.length, 0, {}))
        while at >= 0 and id_ not in states[at].follows:
            states[at].follows[id_] = new
            at = states[at].link
        if at < 0:
            return
        known = states[at].follows[id_]
        if states[known].length > states[at].length + 1:  # only its shorter substrings also end here
            whole, known = known, len(states)
            old = states[whole]
            states.append(State(states[at].length + 1, old.next, old.link, dict(old.follows)))
            old.link = known
            while at >= 0 and states[at].follows.get(id_) == whole:
                states[at].follows[id_] = known
                at = states[at].link
        states[new].link = known

    def longest_match(self) -> tuple[int, int]:
        """Returns the length of the longest suffix that occurred before, 0 if there is none, and the position after its
        first occurrence."""
        match = self._states[max(0, self._states[self._last].link)]
        return match.length, match.next


def build(setup: Setup) -> NgramDrafter:
    return NgramDrafter()


def build_suffix(setup: Setup) -> SuffixDrafter:
    return SuffixDrafter()
