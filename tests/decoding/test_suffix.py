"""Suffix lookup against a search by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from playground.decoding.drafters.lookup import SuffixAutomaton, SuffixDrafter
from tests.decoding.fakes import GREEDY


def longest_by_hand(text: list[int]) -> tuple[int, int]:
    """The longest end of the text that occurs before its end, and where its first occurrence goes on."""
    for n in range(len(text) - 1, 0, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return n, start + n
    return 0, 0


@given(st.lists(st.integers(0, 2), max_size=24))
def test_the_longest_match_is_found_after_every_token(text):
    automaton = SuffixAutomaton()
    for n, id_ in enumerate(text, 1):
        automaton.append(id_)
        assert automaton.longest_match() == longest_by_hand(text[:n])


def test_the_draft_is_what_followed_the_longest_match():
    drafter = SuffixDrafter()
    #         the longer match at its end ([7, 1, 2]) goes on with 4, the shorter ([1, 2]) first with 3
    text = [1, 2, 3, 7, 1, 2, 4, 5, 7, 1, 2]
    assert drafter.propose(text, 2, 0.0, GREEDY).ids == [4, 5]
    drafter.commit(len(text))
    assert drafter.propose([*text, 4, 9, 8, 3], 2, 0.0, GREEDY).ids == [7, 1]


def test_nothing_is_drafted_without_a_match():
    assert SuffixDrafter().propose([1, 2, 3], 4, 0.0, GREEDY).ids == []


def test_a_loop_is_drafted_as_long_as_asked():
    draft = SuffixDrafter().propose([9, 1, 2, 1, 2, 1], 6, 0.0, GREEDY)
    assert draft.ids == [2, 1, 2, 1, 2, 1]
    assert draft.q == [1.0] * 6
    assert draft.probabilities is None
