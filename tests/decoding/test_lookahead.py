from __future__ import annotations

import pytest

from playground.decoding.lookahead import lookahead_for
from playground.errors import PlaygroundError
from playground.trace import Lane


def policy(name: str, tokens: int = 5):
    return lookahead_for(Lane("x", "t", lookahead=tokens, policy=name, confidence_threshold=0.3))


def test_constant_stays():
    lookahead = policy("constant")
    lookahead.update(drafted=5, accepted=5)
    assert (lookahead.tokens, lookahead.stop_below) == (5, 0.0)


def test_heuristic_moves_as_in_transformers():
    lookahead = policy("heuristic", 2)
    seen = []
    for drafted, accepted in [(2, 2), (4, 4), (6, 3), (5, 0), (0, 0), (4, 0), (3, 0), (2, 0), (1, 0), (1, 0)]:
        lookahead.update(drafted, accepted)
        seen.append(lookahead.tokens)
    assert seen == [4, 6, 5, 4, 4, 3, 2, 1, 1, 1], (
        "two up, one down, never below one, untouched where nothing was drafted"
    )


def test_confidence_asks_the_drafter_to_stop_when_unsure():
    assert (policy("confidence").tokens, policy("confidence").stop_below) == (5, 0.3)


def test_an_unknown_policy_is_named():
    with pytest.raises(PlaygroundError, match=r"'bold'.*constant, heuristic, confidence"):
        policy("bold")
