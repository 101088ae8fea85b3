from __future__ import annotations

import itertools
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from playground.trace import Round, TargetToken
from playground.views import stage
from tests.examples import drafted_round, plain_round, tree_round


def test_a_line_holds_the_whole_round():
    round_ = drafted_round([1, 2, 3], accepted=1, own=9)
    data = json.loads(stage.line(round_))
    judged = {"p": 0.7, "q": 0.8, "margin": 0.5}
    assert data["drafted"] == [
        {"id": 1, "text": "1 ", "kind": "accepted", "position": 1, **judged},
        {"id": 2, "text": "2 ", "kind": "rejected", "position": 2, **judged},
        {"id": 3, "text": "3 ", "kind": "unverified", "position": 3, "q": 0.8},
    ]
    assert data["own"] == {"id": 9, "text": "9 ", "kind": "correction", "p": 0.9, "margin": 0.5}


def test_a_token_that_a_grammar_forced_is_marked():
    round_ = drafted_round([1, 2], accepted=2, own=9)
    first, second = round_.drafted
    data = json.loads(stage.line(replace(round_, drafted=(replace(first, forced=True), second))))
    assert [token.get("forced") for token in data["drafted"]] == [True, None]


def test_the_line_of_a_tree_has_depths_and_parents():
    data = json.loads(stage.line(tree_round()))
    assert data["tree"] is True
    assert [token["parent"] for token in data["drafted"]] == [-1, 0, -1, 2, 2]
    assert [token["position"] for token in data["drafted"]] == [1, 2, 1, 2, 2]
    kinds = [token["kind"] for token in data["drafted"]]
    assert kinds == ["rejected", "unverified", "accepted", "rejected", "rejected"]
    assert [token.get("rank") for token in data["drafted"]] == [None, None, None, 3, 3], "those it could have replaced"
    assert data["own"]["kind"] == "correction" and data["own"]["rank"] == 3


def test_what_is_unknown_is_left_out():
    own = TargetToken(None, "a", False, None, None, "plain")
    assert json.loads(stage.line(Round(None, (), own, 0.0, None, None, 0.1)))["own"] == {"text": "a", "kind": "plain"}


def test_a_round_may_end_in_a_draft_token_and_small_probabilities_stay_above_zero():
    own = TargetToken(1, "<end>", True, 1.23456e-9, 0.5, "plain")
    assert json.loads(stage.line(Round(0, (), own, 0.0, 0.0, 0.1, 0.1)))["own"] == {
        "id": 1, "text": "<end>", "kind": "plain", "special": True, "p": 1.235e-9, "margin": 0.5,
    }  # fmt: skip
    assert json.loads(stage.line(Round(0, (), None, 0.0, 0.0, 0.1, 0.1))) == {
        "drafted": [], "times": {"start": 0.0, "draft": 0.0, "verify": 0.1, "end": 0.1},
    }  # fmt: skip


def test_a_log_is_its_rounds_in_order_and_only_grows():
    rounds = [plain_round(1), drafted_round([2, 3], accepted=2, own=4), plain_round(5)]
    logs = [stage.log(rounds[:n]) for n in range(4)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(logs))
    assert logs[-1] == "".join(stage.line(round_) for round_ in rounds)


@given(st.text())
def test_any_text_stays_on_its_line_and_comes_back_the_same(text):
    own = TargetToken(1, text, False, 0.5, 0.5, "plain")
    line = stage.line(Round(0, (), own, 0.0, 0.0, 0.1, 0.1))
    assert line.isascii() and line.count("\n") == 1 and line.endswith("\n")
    assert json.loads(line)["own"]["text"] == text
