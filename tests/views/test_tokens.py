from __future__ import annotations

import dataclasses
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from playground.trace import Round, TargetToken
from playground.views import tokens
from tests.examples import drafted_round, plain_round, tree_round


def test_a_line_holds_the_whole_round():
    round_ = drafted_round([1, 2, 3], accepted=1, own=9)
    drafted, target = json.loads(tokens.line(round_))
    assert drafted == [
        [1, "1 ", "accepted", 0.7, 0.8, 0.5, 0],
        [2, "2 ", "rejected", 0.7, 0.8, 0.5, 0],
        [3, "3 ", "unused", None, 0.8, None, 0],
    ]
    assert target == [9, "9 ", "correction", 0.9, None, 0.5, 0]


def test_the_line_of_a_tree_tells_what_each_token_stands_behind():
    drafted, target, parents = json.loads(tokens.line(tree_round()))
    assert parents == [-1, 0, -1, 2, 2]
    assert [kind for _, _, kind, *_ in drafted] == ["rejected", "unused", "accepted", "rejected", "rejected"]
    assert target[2] == "correction"


def test_a_correction_tells_how_the_drafter_ranked_it():
    round_ = drafted_round([1, 2], accepted=1, own=9)
    ranked = dataclasses.replace(round_, target=dataclasses.replace(round_.target, rank=3))
    assert json.loads(tokens.line(ranked))[1] == [9, "9 ", "correction", 0.9, None, 0.5, 0, 3]


def test_a_round_may_end_in_a_draft_token_and_small_probabilities_stay_above_zero():
    own = TargetToken(1, "<end>", True, 1.23456e-9, 0.5, "plain")
    assert json.loads(tokens.line(Round(0, (), own, 0.0, 0.0, 0.1, 0.1)))[1] == [
        1, "<end>", "plain", 1.235e-9, None, 0.5, 1,
    ]  # fmt: skip
    assert json.loads(tokens.line(Round(0, (), None, 0.0, 0.0, 0.1, 0.1))) == [[], None]


def test_a_log_is_its_rounds_in_order_and_only_grows():
    rounds = [plain_round(1), drafted_round([2, 3], accepted=2, own=4), plain_round(5)]
    logs = [tokens.log(rounds[:n]) for n in range(4)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(logs))
    assert logs[-1] == "".join(tokens.line(round_) for round_ in rounds)


@given(st.text())
def test_any_text_stays_on_its_line_and_comes_back_the_same(text):
    own = TargetToken(1, text, False, 0.5, 0.5, "plain")
    line = tokens.line(Round(0, (), own, 0.0, 0.0, 0.1, 0.1))
    assert line.isascii() and line.count("\n") == 1 and line.endswith("\n")
    assert json.loads(line)[1][1] == text
