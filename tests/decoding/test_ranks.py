"""Where the target's choice stood among the drafter's candidates: would a wider draft have held it?"""

from __future__ import annotations

import pytest
import torch

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import rank_among
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.lane import Request
from tests.decoding.fakes import FakeModel, NumberTokenizer, ScriptedDrafter, random_law
from tests.decoding.test_tree import LawBranches

V = 12
TARGET, DRAFTER = random_law(1, V), random_law(2, V)


def rounds_of(drafter):
    sampler, detokenizer = Sampler(Request("x"), torch.device("cpu")), Detokenizer(NumberTokenizer(), [0])
    return list(decode(FakeModel(TARGET, V), drafter, Lookahead(3), sampler, detokenizer, [0, 1], 30, ()))


def expected_rank(text, choice):
    order = DRAFTER(text).argsort(descending=True).tolist()
    return order.index(choice) + 1


def check_ranks(rounds):
    text, corrections = [0, 1], 0
    for round_ in rounds:
        text += [token.id for token in round_.accepted]
        if round_.target.reason == "correction":
            corrections += 1
            assert round_.target.rank == expected_rank(text, round_.target.id)
        else:
            assert round_.target.rank is None
        text.append(round_.target.id)
    assert corrections > 3


def test_a_correction_has_its_rank_among_what_an_assistant_could_have_drafted():
    rounds = rounds_of(AssistantDrafter(FakeModel(DRAFTER, V), V, ()))
    check_ranks(rounds)
    assert all(round_.target.rank != 1 for round_ in rounds)


def test_of_a_tree_it_is_the_rank_after_the_branch_that_was_kept():
    check_ranks(rounds_of(TreeDrafter(LawBranches(DRAFTER, V), 5, ())))


def test_a_lookup_has_no_other_candidates():
    rounds = rounds_of(ScriptedDrafter(lambda ids, k: [0] * k))
    assert any(round_.target.reason == "correction" for round_ in rounds)
    assert all(round_.target.rank is None for round_ in rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_ranks_are_those_after_the_repetition_penalty(temperature):
    request = Request("x", temperature=temperature, repetition_penalty=2.0)
    choose = DraftChoice(V, Sampler(request, torch.device("cpu")))
    draft_ids = torch.tensor([1, 4, 6, 9])
    choice = choose([6], torch.tensor([[1.0, 3.0, 4.0, 0.5]]), draft_ids)  # 6, the best, has come: 4 becomes 2
    assert [rank(choice.candidates[0], draft_ids, id_) for id_ in (4, 6, 1, 9)] == [1, 2, 3, 4]


def test_what_a_reduced_vocabulary_lacks_has_rank_0():
    scores = torch.tensor([0.1, 0.3, 0.2])
    assert [rank(scores, torch.tensor([3, 7, 9]), id_) for id_ in (7, 9, 3, 4)] == [1, 2, 3, 0]


def rank(scores: torch.Tensor, ids: torch.Tensor, id_: int) -> int:
    return int(rank_among(scores, ids, torch.tensor([id_])))
