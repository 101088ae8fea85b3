"""The shape of draft trees: of all branches the likeliest, each after its parent."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playground.decoding.drafters.base import Branches, NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.tree import WIDTH, TreeDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.lane import Request
from tests.decoding.fakes import GREEDY, FakeModel, NumberTokenizer, random_law
from tests.decoding.law import cases, follows_the_law

V = 4
EOS = V - 1


class LawBranches(Branches):
    """Branches over a law. Remembers how many tokens it was asked to grow at each place."""

    deepest, context, cache_bytes, confidence = 9, 10_000, 0, None

    def __init__(self, law, vocab_size: int = V, ready: bool = True) -> None:
        self.law, self.ready = law, ready
        self.draft_ids = torch.arange(vocab_size)
        self.grown: list[int] = []
        self.ended = self.committed = 0

    def root(self, ids):
        self.texts = [list(ids)]
        return self._logits() if self.ready else None

    def grow(self, ids, rows):
        ids = [int(id_) for id_ in ids]
        assert len(ids) == len(rows) == len({(row, id_) for row, id_ in zip(rows, ids, strict=True)})
        self.texts = [[*self.texts[row], id_] for id_, row in zip(ids, rows, strict=True)]
        self.grown.append(len(ids))
        return self._logits()

    def _logits(self):
        return torch.stack([self.law(text) for text in self.texts])

    def end(self):
        self.ended += 1

    def commit(self):
        self.committed += 1

    def rewind(self, length):
        return length


def q_of(law, text, path):
    """The drafter's probability of each token of a branch."""
    return [float(law([*text, *path[:i]]).softmax(-1)[id_]) for i, id_ in enumerate(path)]


@given(seed=st.integers(0, 200), depth=st.integers(1, 3), nodes=st.integers(1, 20))
def test_a_tree_holds_the_likeliest_branches_of_all(seed, depth, nodes):
    law, text = random_law(seed, V), [0, 1]
    draft = TreeDrafter(LawBranches(law), nodes, ()).propose(text, depth, 0.0, GREEDY)
    paths = [tuple(draft.ids[j] for j in draft.path(i)) for i in range(len(draft.ids))]
    every = [path for n in range(1, depth + 1) for path in itertools.product(range(V), repeat=n)]
    chance = {path: math.prod(q_of(law, text, path)) for path in every}
    assert len(paths) == len(set(paths)) == min(nodes, len(every))
    assert all(-1 <= parent < i for i, parent in enumerate(draft.tree))
    if V ** (depth - 1) <= WIDTH:  # every branch may grow
        assert sorted(map(chance.get, paths)) == pytest.approx(sorted(chance.values())[-len(paths) :])
    for i, path in enumerate(paths):
        assert draft.q[i] == pytest.approx(q_of(law, text, path)[-1], rel=1e-5)


def test_the_likeliest_branch_comes_first_as_a_chain_would():
    law, text = random_law(3, V), [0, 1]
    draft = TreeDrafter(LawBranches(law), 12, ()).propose(text, 3, 0.0, GREEDY)
    chain = list(text)
    for _ in range(3):
        chain.append(int(law(chain).argmax()))
    assert draft.ids[:3] == chain[2:]
    assert draft.tree[:3] == [-1, 0, 1]


def test_nothing_grows_after_an_end_of_text():
    draft = TreeDrafter(LawBranches(random_law(5, V)), 40, {EOS}).propose([0, 1], 3, 0.0, GREEDY)
    assert EOS in draft.ids
    assert all(draft.ids[parent] != EOS for parent in draft.tree if parent >= 0)


@pytest.mark.parametrize(("stop_below", "grown"), [(0.95, [4]), (0.75, [4, 4])])
def test_a_tree_ends_where_all_its_branches_together_are_unlikely(stop_below, grown):
    """The two likeliest tokens have a q of 0.45 each: four branches of two of them come to 0.81."""
    branches = LawBranches(lambda text: torch.tensor([0.45, 0.45, 0.05, 0.05]).log())
    TreeDrafter(branches, 6, ()).propose([0], 3, stop_below, GREEDY)
    assert branches.grown == grown


@pytest.mark.parametrize(("stop_below", "grown"), [(0.5, 1), (0.3, 2), (0.2, 3), (0.0, 4)])
def test_a_chain_that_goes_by_costs_ends_by_the_chance_to_get_there_as_a_tree_does(stop_below, grown):
    """Each token has a q of 0.6; without costs none is below the threshold."""
    for costs, levels in (((lambda tokens: 1 + tokens / 100,), grown), ((), 4)):
        branches = LawBranches(lambda text: torch.tensor([0.6, 0.2, 0.1, 0.1]).log())
        draft = ChainDrafter(branches, V, (), *costs).propose([0], 5, stop_below, GREEDY)
        assert (len(branches.grown), len(draft.ids)) == (levels, levels + 1)


@pytest.mark.parametrize(("token_costs", "kept"), [(0.0, 4), (0.07, 3), (0.18, 2), (0.35, 1), (0.7, 0)])
def test_a_tree_has_the_tokens_that_are_worth_their_verification(token_costs, kept):
    """0.6 + 0.25 + 0.1 + 0.05 tokens: each must be likelier than the passes that it costs."""
    law = LawBranches(lambda text: torch.tensor([0.6, 0.25, 0.1, 0.05]).log())
    drafter = TreeDrafter(law, 64, (), cost=lambda tokens: 1 + token_costs * (tokens - 1))
    assert drafter.propose([0], 1, 0.0, GREEDY).ids == [0, 1, 2, 3][:kept]


@pytest.mark.parametrize(("nodes", "kept"), [(4, 4), (1, 0)])
def test_tokens_that_do_not_pay_one_by_one_may_pay_together(nodes, kept):
    law = LawBranches(lambda text: torch.zeros(V))
    drafter = TreeDrafter(law, nodes, (), cost=lambda tokens: 1.0 if tokens == 1 else 1.5)
    assert len(drafter.propose([0], 1, 0.0, GREEDY).ids) == kept


def test_a_tree_of_less_than_all_tokens_is_never_certain():
    unsure = LawBranches(random_law(5, V))
    assert TreeDrafter(unsure, V - 1, ()).propose([0, 1], 3, 1.0, GREEDY).depth == 1
    assert unsure.grown == []


def test_it_waits_until_there_is_something_to_draft_from_and_tells_of_every_round():
    branches = LawBranches(random_law(0, V), ready=False)
    drafter = TreeDrafter(branches, 4, ())
    assert drafter.propose([0, 1], 3, 0.0, GREEDY).ids == []
    drafter.commit(2)
    branches.ready = True
    assert len(drafter.propose([0, 1], 3, 0.0, GREEDY).ids) == 4
    assert (branches.ended, branches.committed) == (1, 1)


@pytest.mark.parametrize(
    ("sampling", "draws"),
    cases(
        [
            dict(temperature=1),
            dict(temperature=0.7, top_p=0.8),
            dict(temperature=1.5, top_k=2, repetition_penalty=1.5, presence_penalty=0.6),
        ]
    ),
)
def test_trees_leave_the_targets_law_over_all_continuations(sampling, draws):
    def new_drafter(target):
        return TreeDrafter(LawBranches(random_law(2, 3), 3), 5, ())

    assert follows_the_law(random_law(1, 3), 3, new_drafter, draws=draws, **sampling)


DRAFTERS = {
    "tree of 2": lambda: TreeDrafter(LawBranches(random_law(2, V)), 2, ()),
    "tree of 20": lambda: TreeDrafter(LawBranches(random_law(1, V)), 20, ()),
    "lookup": lambda: NgramDrafter(2, 1),
    "both": lambda: CompositeDrafter(NgramDrafter(2, 1), TreeDrafter(LawBranches(random_law(1, V)), 5, ())),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_under_one_seed_a_sampled_text_is_the_same_whatever_was_chosen_as_a_draft(name):
    def sampled(drafter, seed):
        sampler = Sampler(Request("x", temperature=0.8, top_p=0.9, seed=seed), torch.device("cpu"))
        detokenizer = Detokenizer(NumberTokenizer(), [0, 1])
        target = FakeModel(random_law(1, V), V)
        rounds = list(decode(target, drafter, Lookahead(3), sampler, detokenizer, [0, 1], 30, ()))
        return [token.id for round_ in rounds for token in round_.tokens], target.passes

    for seed in range(5):
        text, passes = sampled(DRAFTERS[name](), seed)
        alone, one_each = sampled(NoDrafter(), seed)
        assert text == alone
        assert passes < one_each == 30


def test_a_round_tells_of_every_branch_what_became_of_it():
    """The target writes 0 1 2 …; the drafter has both its token and another one at every place."""

    def target_law(ids):
        return torch.nn.functional.one_hot(torch.tensor((ids[-1] + 1) % V), V) * 5.0

    def drafter_law(ids):  # right, but second best
        ahead = (torch.arange(V) - ids[-1]) % V
        return 2.0 * (ahead == 2) + 1.0 * (ahead == 1)

    drafter = TreeDrafter(LawBranches(drafter_law), 6, ())
    sampler = Sampler(Request("x"), torch.device("cpu"))
    detokenizer = Detokenizer(NumberTokenizer(), [0])
    target = FakeModel(target_law, V)
    rounds = list(decode(target, drafter, Lookahead(2), sampler, detokenizer, [0], 8, ()))
    assert [token.id for round_ in rounds for token in round_.tokens] == [1, 2, 3, 0, 1, 2, 3, 0]
    first = rounds[0]
    assert [token.decision for token in first.accepted] == ["accepted"] * len(first.accepted)
    kept = {-1} | {i for i, token in enumerate(first.drafted) if token.decision == "accepted"}
    for token in first.drafted:
        assert (token.decision == "unverified") == (token.parent not in kept) == (token.p is None)
    assert target.passes == len(rounds) < 8


def test_a_tree_that_is_asked_to_be_shallower_is_smaller():
    law = random_law(3, V)
    sizes = [
        len(TreeDrafter(LawBranches(law), 12, (), lookahead=4).propose([0, 1], k, 0.0, GREEDY).ids)
        for k in (1, 2, 4, 6)
    ]
    assert sizes == [3, 6, 12, 12]


def test_a_tree_is_no_smaller_because_its_drafter_has_fewer_places_than_the_lookahead():
    branches = LawBranches(random_law(3, V))
    branches.deepest = 3
    assert len(TreeDrafter(branches, 12, (), lookahead=9).propose([0, 1], 9, 0.0, GREEDY).ids) == 12
