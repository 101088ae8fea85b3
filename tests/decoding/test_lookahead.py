from __future__ import annotations

import random

import pytest
import torch

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Constant, MemoryCap, lookahead_for
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
    return lookahead_for(Lane("x", "t", lookahead=tokens, policy=name, confidence_threshold=0.3), torch.device("cpu"))


def test_constant_stays():
    lookahead = policy("constant")
    lookahead.update(5, 5, 0.1, 0.1)
    assert (lookahead.tokens, lookahead.stop_below) == (5, 0.0)


def test_heuristic_moves_as_in_transformers():
    lookahead = policy("heuristic", 2)
    seen = []
    for drafted, accepted in [(2, 2), (4, 4), (6, 3), (5, 0), (0, 0), (4, 0), (3, 0), (2, 0), (1, 0), (1, 0)]:
        lookahead.update(drafted, accepted, 0.1, 0.1)
        seen.append(lookahead.tokens)
    assert seen == [4, 6, 5, 4, 4, 3, 2, 1, 1, 1], (
        "two up, one down, never below one, untouched where nothing was drafted"
    )


def test_confidence_asks_the_drafter_to_stop_when_unsure():
    assert (policy("confidence").tokens, policy("confidence").stop_below) == (5, 0.3)


def settled(alpha_of_ten: int, c: float) -> int:
    """What the cost model comes to where one token of so many of ten drafts is accepted, and none of the others."""
    lookahead = policy("cost", 8)
    for i in range(400):
        lookahead.update(1, int(i % 10 < alpha_of_ten), c * 0.05, 0.05)
    return lookahead.tokens


def test_the_cost_model_finds_what_pays():
    assert settled(9, 0.01) == 8, "sure and cheap: as many as allowed"
    assert settled(1, 0.5) == 1, "unsure and dear: as few as there are"
    assert settled(9, 0.01) > settled(7, 0.1) > settled(3, 0.1)


@pytest.mark.parametrize(("alpha", "c"), [(0.8, 0.05), (0.6, 0.1), (0.4, 0.02)])
def test_the_cost_model_agrees_with_a_simulation(alpha, c):
    def speed(gamma: int) -> float:
        expected = sum(alpha**i for i in range(gamma + 1))  # the target's token, and each draft while all before stood
        return expected / (gamma * c + 1)

    lookahead = policy("cost", 12)
    rng = random.Random(0)
    for _ in range(3_000):
        gamma = lookahead.tokens
        accepted = next((i for i in range(gamma) if rng.random() > alpha), gamma)
        lookahead.update(gamma, accepted, gamma * c * 0.05, 0.05)
    best = max(range(1, 13), key=speed)
    assert speed(lookahead.tokens) > 0.97 * speed(best)


def test_the_cost_model_leaves_the_prefill_out():
    lookahead = policy("cost", 8)
    lookahead.update(0, 0, 0.0, 100.0)  # were it counted, drafting would seem free
    lookahead.update(1, 1, 9.0, 0.05)  # a drafter that reads hidden states reads the prompt's in the second round
    for i in range(10):
        lookahead.update(1, i % 2, 0.05, 0.05)
    assert lookahead.tokens == 1


def test_an_unknown_policy_is_named():
    with pytest.raises(PlaygroundError, match="'bold'"):
        policy("bold")


def test_a_memory_cap_shrinks_drafts_as_memory_runs_short_and_lets_them_grow_again():
    free = iter([8e9, 4e9, 2e9, 1e9, 0.1e9, 8e9])
    cap = MemoryCap(Constant(8), 4e9, lambda: int(next(free)))
    seen = [(cap.tokens, cap.capped)]
    for _ in range(5):
        cap.update(1, 1, 0.1, 0.1)
        seen.append((cap.tokens, cap.capped))
    assert seen == [(8, False), (8, False), (4, True), (2, True), (0, True), (8, False)]


def test_a_memory_cap_stands_over_any_policy():
    lane = Lane("x", "t", lookahead=5, policy="confidence", confidence_threshold=0.3, keep_free_gb=1e-9)
    cap = lookahead_for(lane, torch.device("cpu"))
    assert (cap.tokens, cap.stop_below, cap.capped) == (5, 0.3, False)
    short = lookahead_for(Lane("x", "t", policy="heuristic", keep_free_gb=1e9), torch.device("cpu"))
    assert (short.tokens, short.capped) == (0, True)
    short.update(2, 2, 0.1, 0.1)
    assert short._policy.tokens == 7, "the policy learns all the same"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("keep_free_gb", [0.0, 1e9])
@pytest.mark.parametrize("way", ["assistant", "chain", "tree", "lookup", "composite", "adaptive"])
def test_every_policy_works_with_every_kind_of_drafter(name, keep_free_gb, way):
    vocab = 8
    law, sampler = random_law(1, vocab), Sampler(Request("x"), CPU)
    plain = decoded(law, NoDrafter(), Constant(1), sampler)
    tree = TreeDrafter(LawBranches(random_law(2, vocab), vocab), 6, (), lookahead=4)
    drafter = {
        "assistant": lambda: AssistantDrafter(FakeModel(random_law(2, vocab), vocab), vocab, ()),
        "chain": lambda: ChainDrafter(LawBranches(law, vocab), vocab, eos_ids=()),
        "tree": lambda: tree,
        "lookup": NgramDrafter,
        "composite": lambda: CompositeDrafter(NgramDrafter(), tree),
        "adaptive": lambda: AdaptiveDrafter(NgramDrafter(), tree),
    }[way]()
    lane = Lane("x", "t", lookahead=4, policy=name, confidence_threshold=0.3, keep_free_gb=keep_free_gb)
    rounds = decoded(law, drafter, lookahead_for(lane, CPU), sampler)
    assert ids_of(rounds) == ids_of(plain)
    assert any(round_.drafted for round_ in rounds) == (keep_free_gb == 0)
    assert all(round_.capped for round_ in rounds) == (keep_free_gb > 0)


def decoded(law, drafter, lookahead, sampler):
    detokenizer = Detokenizer(NumberTokenizer(), [0, 1])
    return list(decode(FakeModel(law, 8), drafter, lookahead, sampler, detokenizer, [0, 1], 30, ()))
