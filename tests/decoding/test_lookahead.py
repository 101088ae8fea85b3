from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft, NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Lookahead, Measured, MemoryCap, lookahead_for
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.errors import PlaygroundError
from playground.lane import Lane, Request
from playground.settings import POLICIES
from tests.decoding.fakes import FakeModel, NumberTokenizer, random_law
from tests.decoding.real import ids_of
from tests.decoding.test_tree import LawBranches

CPU = torch.device("cpu")


def policy(name: str, tokens: int = 5):
    lane = Lane("x", "t", drafter="ngram", lookahead=tokens, policy=name, confidence_threshold=0.3)
    return lookahead_for(lane, CPU, float)


def test_constant_stays():
    lookahead = policy("constant")
    lookahead.update(chain(*[1.0] * 5), range(5), 0.1, 0.1)
    assert (lookahead.tokens, lookahead.stop_below) == (5, 0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_lane_that_drafts_nothing_learns_nothing(name):
    """The time of learning counts as decoding, and would make a second standard lane slower than the first."""
    lane = Lane("Again", "t", drafter="none", policy=name)
    assert type(lookahead_for(lane, CPU, float)) is Lookahead


def test_heuristic_moves_as_in_transformers():
    lookahead = policy("heuristic", 2)
    seen = []
    for drafted, accepted in [(2, 2), (4, 4), (6, 3), (5, 0), (0, 0), (4, 0), (3, 0), (2, 0), (1, 0), (1, 0)]:
        lookahead.update(chain(*[1.0] * drafted), range(accepted), 0.1, 0.1)
        seen.append(lookahead.tokens)
    assert seen == [4, 6, 5, 4, 4, 3, 2, 1, 1, 1], (
        "two up, one down, never below one, untouched where nothing was drafted"
    )


def test_confidence_asks_the_drafter_to_stop_when_unsure():
    assert (policy("confidence").tokens, policy("confidence").stop_below) == (5, 0.3)


def chain(*q: float, scored: bool = True) -> Draft:
    ids = list(range(len(q)))
    return Draft(ids, q, candidates=[torch.zeros(1)] * len(q) if scored else None)


def ran(
    rounds: int,
    chance: float,
    step: float,
    draft_cost: float,
    most: int = 8,
    q: float | None = None,
    measured: float | None = None,
    seed: int = 0,
) -> float:
    """Simulates a lane whose tokens are accepted with this chance, and returns its tokens for each plain pass. `step`:
    the cost of a further token in a pass, and what was `measured` for it; `draft_cost`: of one level. `q`: what the
    drafter says that the chance is."""
    lookahead = Measured(most, lambda tokens: 1 + (step if measured is None else measured) * (tokens - 1))
    rng, tokens, spent = random.Random(seed), 0, 0.0
    for _ in range(rounds):
        own = chance if q is None else q
        drafted = chain(*[own] * (min(lookahead.tokens, 1) if own < lookahead.stop_below else lookahead.tokens))
        draft = lookahead.worth(drafted)
        accepted = next((i for i in range(len(draft.ids)) if rng.random() > chance), len(draft.ids))
        draft_s = 0.01 * draft_cost * len(drafted.ids)
        target_s = 0.01 * (1 + step * len(draft.ids))
        lookahead.update(draft, range(accepted), draft_s, target_s)
        tokens, spent = tokens + accepted + 1, spent + (draft_s + target_s) / 0.01
    return tokens / spent


@pytest.mark.parametrize(("chance", "step"), [(0.9, 0.02), (0.7, 0.1), (0.5, 0.2)])
def test_measured_costs_lead_to_the_speed_of_the_best_depth(chance, step):
    def speed(depth: int) -> float:
        return sum(chance**i for i in range(depth + 1)) / (1 + step * depth)

    seen = sum(ran(500, chance, step, 0.0, seed=seed) for seed in range(5)) / 5
    best = max(map(speed, range(9)))
    assert seen > 0.95 * best


@pytest.mark.parametrize(("q", "least"), [(0.1, 0.97), (0.9, 0.9)])
def test_a_drafter_that_is_never_right_costs_little(q, least):
    """Whether it is as unsure as it should be, or says that it is sure."""
    speed = ran(128, 0.0, 0.2, 0.02, q=q)
    assert speed > least


def test_passes_that_cost_more_than_was_measured_at_load_are_found_out():
    assert ran(300, 0.3, 0.4, 0.05, measured=0.05) > 0.9


def test_a_drafter_that_says_too_much_is_believed_less_and_less():
    lookahead = Measured(4, lambda tokens: 1 + 0.3 * (tokens - 1))
    sure = chain(0.9, 0.9)
    assert len(lookahead.worth(sure).ids) == 2
    for _ in range(12):
        lookahead.update(sure, [], 0.0, 0.01)
    assert len(lookahead.worth(sure).ids) == 0
    assert len(lookahead.worth(chain(1.0, 1.0, scored=False)).ids) == 2, "lookups are judged apart"


def test_drafting_begins_again_after_a_pause():
    lookahead = Measured(4, lambda tokens: 1 + 0.3 * (tokens - 1))
    while lookahead.tokens:
        lookahead.update(chain(0.9, 0.9), [], 0.001, 0.01)
    for _ in range(Measured.REST):
        assert lookahead.tokens == 0
        lookahead.update(chain(), [], 0.0, 0.01)
    assert lookahead.tokens == 4


def test_a_sampled_draft_is_not_cut():
    lookahead = Measured(4, lambda tokens: float(tokens))
    sampled = Draft([1, 2], [0.1, 0.1], probabilities=torch.full((2, 10), 0.1))
    assert lookahead.worth(sampled) is sampled


def test_a_tree_is_cut_to_its_likeliest_tokens():
    lookahead = Measured(4, lambda tokens: 1 + 0.25 * (tokens - 1))
    tree = Draft([5, 6, 7, 8], [0.6, 0.9, 0.2, 0.35], tree=[-1, 0, 1, -1], candidates=[torch.zeros(1)] * 4)
    assert (lookahead.worth(tree).ids, lookahead.worth(tree).tree) == ([5, 6, 8], [-1, 0, -1])


def test_an_unknown_policy_is_named():
    with pytest.raises(PlaygroundError, match="'bold'"):
        policy("bold")


def test_a_memory_cap_shrinks_drafts_as_memory_runs_short_and_lets_them_grow_again():
    free = iter([8e9, 4e9, 2e9, 1e9, 0.1e9, 8e9])
    cap = MemoryCap(Lookahead(8), 4e9, lambda: int(next(free)))
    seen = [(cap.tokens, cap.capped)]
    for _ in range(5):
        cap.update(chain(1.0), [0], 0.1, 0.1)
        seen.append((cap.tokens, cap.capped))
    assert seen == [(8, False), (8, False), (4, True), (2, True), (0, True), (8, False)]


def test_a_memory_cap_stands_over_any_policy():
    lane = Lane("x", "t", drafter="mtp", lookahead=5, policy="confidence", confidence_threshold=0.3, keep_free_gb=1e-9)
    cap = lookahead_for(lane, CPU, float)
    assert (cap.tokens, cap.stop_below, cap.capped) == (5, 0.3, False)
    short = lookahead_for(replace(lane, policy="heuristic", keep_free_gb=1e9), CPU, float)
    assert (short.tokens, short.capped) == (0, True)
    short.update(chain(1.0, 1.0), [0, 1], 0.1, 0.1)
    assert short._policy.tokens == 7, "the policy learns all the same"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("keep_free_gb", [0.0, 1e9])
@pytest.mark.parametrize("way", ["assistant", "chain", "tree", "lookup", "composite", "adaptive"])
def test_every_policy_works_with_every_kind_of_drafter(name, keep_free_gb, way):
    vocab = 8
    law, sampler = random_law(1, vocab), Sampler(Request("x"), CPU)
    plain = decoded(law, NoDrafter(), Lookahead(1), sampler)
    tree = TreeDrafter(LawBranches(random_law(2, vocab), vocab), 6, (), lookahead=4)
    drafter = {
        "assistant": lambda: AssistantDrafter(FakeModel(random_law(2, vocab), vocab), vocab, ()),
        "chain": lambda: ChainDrafter(LawBranches(law, vocab), vocab, eos_ids=()),
        "tree": lambda: tree,
        "lookup": NgramDrafter,
        "composite": lambda: CompositeDrafter(NgramDrafter(), tree),
        "adaptive": lambda: AdaptiveDrafter(NgramDrafter(), tree),
    }[way]()
    lane = Lane("x", "t", drafter="mtp", lookahead=4, policy=name, confidence_threshold=0.3, keep_free_gb=keep_free_gb)
    rounds = decoded(law, drafter, lookahead_for(lane, CPU, lambda tokens: 1.0), sampler)
    assert ids_of(rounds) == ids_of(plain)
    assert any(round_.drafted for round_ in rounds) == (keep_free_gb == 0)
    assert any(round_.capped for round_ in rounds) == (keep_free_gb > 0)


def decoded(law, drafter, lookahead, sampler):
    detokenizer = Detokenizer(NumberTokenizer(), [0, 1])
    return list(decode(FakeModel(law, 8), drafter, lookahead, sampler, detokenizer, [0, 1], 30, ()))
