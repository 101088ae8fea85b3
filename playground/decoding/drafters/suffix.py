"""Suffix lookup: finds the longest suffix that occurred before; the tokens that followed it there are the draft.

Hu et al. 2024, "SAM Decoding", and Oliaro et al. 2024, "SuffixDecoding". Prompt lookup (ngram.py) matches a few tokens;
a suffix automaton (Blumer et al. 1985) knows every substring of the sequence, and so finds the longest match. Adding a
token takes constant time on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, copied
from playground.decoding.drafters.build import Setup
from playground.decoding.sampling import Sampler


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


def build(setup: Setup) -> SuffixDrafter:
    return SuffixDrafter()
