"""Suffix lookup: the longest end of the text that has been seen before, and what followed it there, is the draft.

Hu et al. 2024, "SAM Decoding", and Oliaro et al. 2024, "SuffixDecoding". Prompt lookup (ngram.py) goes by a few tokens;
a suffix automaton (Blumer et al. 1985) knows every substring of the text, and so the longest match there is. It grows
by a token in constant time on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, copied
from playground.decoding.drafters.build import Setup


class SuffixDrafter(Drafter):
    """Drafts wherever the text's end has been seen before."""

    def __init__(self) -> None:
        self._seen = SuffixAutomaton()

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        for id_ in ids[self._seen.length :]:
            self._seen.append(id_)
        length, goes_on = self._seen.longest_match()
        if not length:
            return NOTHING
        return copied(ids, goes_on, k)

    def commit(self, length: int) -> None:
        pass  # only committed text is ever entered


@dataclass
class State:
    """Substrings that end at the same places: the longest has `length` tokens, the first of the places is before
    `goes_on`. `link`: the state of the longest end of theirs that ends at other places, too."""

    length: int
    goes_on: int
    link: int
    follows: dict[int, int]


class SuffixAutomaton:
    """All substrings of a text that grows."""

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
        if states[known].length > states[at].length + 1:  # only the shorter of its substrings end here, too
            whole, known = known, len(states)
            old = states[whole]
            states.append(State(states[at].length + 1, old.goes_on, old.link, dict(old.follows)))
            old.link = known
            while at >= 0 and states[at].follows.get(id_) == whole:
                states[at].follows[id_] = known
                at = states[at].link
        states[new].link = known

    def longest_match(self) -> tuple[int, int]:
        """The length of the text's longest end that it also holds elsewhere, 0 where there is none, and where the text
        went on behind its first occurrence."""
        match = self._states[max(0, self._states[self._last].link)]
        return match.length, match.goes_on


def build(setup: Setup) -> SuffixDrafter:
    return SuffixDrafter()
