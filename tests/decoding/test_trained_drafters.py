"""Drafters that read the target's hidden states, untrained ones too, on transformers' real classes in float32."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.adaptive import AdaptiveDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.heads import HeadsBranches
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.mtp import MtpBranches
from playground.decoding.drafters.ngram import NgramDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.models.heads import ParallelHeads
from playground.models.mtp import MtpLayer
from playground.trace import Request
from tests.decoding.fakes import NumberTokenizer, ScriptedDrafter
from tests.decoding.test_transformers_models import FAMILIES, V, generated, ids_of, prompts
from tests.decoding.test_verify import agrees

SEVERAL = {"composite": CompositeDrafter, "adaptive": AdaptiveDrafter}
WAYS = ("mtp", "heads", "mtp tree", "heads tree", *SEVERAL)


def network_for(way: str, model, draft_ids: torch.Tensor):
    """Heads of random weights, or a layer that starts from the target's last."""
    torch.manual_seed(7)
    if way.startswith("heads"):
        return ParallelHeads(model, draft_ids, 4).eval()
    layer = MtpLayer(model, draft_ids).eval()
    layer.start_from(model)
    return layer


def drafter_for(way: str, network, target: CachedModel, sampler: Sampler):
    ends = {V - 1}
    branches = (HeadsBranches if way.startswith("heads") else MtpBranches)(network, target)
    if way in ("mtp", "heads"):
        return ChainDrafter(branches, DraftChoice(branches.draft_ids, target.vocab_size, sampler), ends)
    tree = TreeDrafter(branches, 12, ends)
    return SEVERAL[way](NgramDrafter(3, 2), tree) if way in SEVERAL else tree


def rounds_of(model, way, network, prompt, lookahead=4, max_new_tokens=24, **sampling):
    target, sampler = CachedModel(model), Sampler(Request("x", **sampling), model.device)
    drafter = drafter_for(way, network, target, sampler)
    detokenizer = Detokenizer(NumberTokenizer(), prompt)
    return list(decode(target, drafter, Constant(lookahead), sampler, detokenizer, prompt, max_new_tokens, {V - 1}))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_and_only_the_draft_vocabulary_is_drafted(family, way):
    model = FAMILIES[family](0, 2)
    network = network_for(way, model, torch.arange(0, V, 2))
    drafted = 0
    for prompt in prompts(20):
        rounds = rounds_of(model, way, network, prompt)
        assert ids_of(rounds) == generated(model, prompt)
        drafted += sum(len(round_.drafted) for round_ in rounds)
        if way not in SEVERAL:
            assert all(token.id % 2 == 0 for round_ in rounds for token in round_.drafted)
    assert drafted > 100


@pytest.mark.parametrize("way", ["mtp", "heads"])
def test_nothing_is_drafted_before_the_targets_first_pass(way):
    model = FAMILIES["llama"](0, 2)
    first, second, *_ = rounds_of(model, way, network_for(way, model, torch.arange(V)), [3, 1, 4])
    assert not first.drafted
    assert len(second.drafted) == 4


def test_heads_draft_no_more_tokens_than_there_are():
    model = FAMILIES["llama"](0, 2)
    heads = network_for("heads", model, torch.arange(V))
    _, second, *_ = rounds_of(model, "heads", heads, [3, 1, 4], lookahead=9)
    assert len(second.drafted) == 4


def test_what_was_drafted_before_leaves_nothing_behind():
    """Behind any number of rounds, some accepted and some not, the draft is that of a drafter which sees the text for
    the first time."""
    model = FAMILIES["llama"](0, 2)
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    target, sampler = CachedModel(model), Sampler(Request("x"), model.device)
    layer = network_for("mtp", model, torch.arange(V))
    drafter = drafter_for("mtp", layer, target, sampler)
    target.forward(text[:3], keep=1)
    target.keep(3)
    drafter.commit(3)
    for stands in (5, 6, 10):  # of the text, behind each round: one, none and three drafted tokens accepted
        known = target.length + 1
        fresh_target = CachedModel(model)
        fresh = drafter_for("mtp", layer, fresh_target, sampler)
        fresh_target.forward(text[: known - 1], keep=1)
        fresh.commit(known - 1)
        again = drafter.propose(text[:known], 3, 0.0)
        assert again.q == pytest.approx(fresh.propose(text[:known], 3, 0.0).q, rel=1e-4)
        target.forward(text[target.length : known + 3], keep=4)
        target.keep(stands)
        drafter.commit(stands)


def test_a_composite_prefers_what_it_names_first():
    first = ScriptedDrafter(lambda ids, k: [1] * k if len(ids) % 2 else [])
    second = ScriptedDrafter(lambda ids, k: [2] * k)
    both = CompositeDrafter(first, second)
    assert both.propose([0], 2, 0.0).ids == [1, 1]
    assert both.propose([0, 0], 2, 0.0).ids == [2, 2]
    both.commit(1)
    assert first.committed == second.committed == [1]


@pytest.mark.parametrize("way", WAYS)
def test_sampled_runs_follow_the_targets_law_over_all_continuations(way):
    vocab, prompt, length = 4, [0, 1, 0, 2, 0, 1], 3
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.8,
        )
    ).eval()
    sampler = Sampler(Request("x", temperature=0.9, top_k=3, seed=1), model.device)
    draft_ids = torch.tensor([0, 1, 3])
    texts = list(itertools.product(range(vocab), repeat=length))
    with torch.inference_mode():
        rows = model(torch.tensor([prompt + list(text) for text in texts])).logits[:, len(prompt) - 1 : -1].float()
    chances = [
        float(sampler.probabilities(row)[range(length), list(text)].prod())
        for row, text in zip(rows, texts, strict=True)
    ]
    counts = dict.fromkeys(texts, 0)
    network = network_for(way, model, draft_ids)
    for _ in range(1_500):
        target = CachedModel(model)
        drafter = drafter_for(way, network, target, sampler)
        detokenizer = Detokenizer(NumberTokenizer(), prompt)
        rounds = decode(target, drafter, Constant(2), sampler, detokenizer, prompt, length, ())
        counts[tuple(ids_of(rounds))] += 1
    assert agrees(list(counts.values()), torch.tensor(chances))
