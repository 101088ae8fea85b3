"""Drafters that read the target's hidden states, untrained ones too, on transformers' real classes in float32."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground.decoding.drafters import hidden
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.lane import Request
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from tests.decoding.fakes import GREEDY, ScriptedDrafter
from tests.decoding.law import LENGTH, PROMPT, NoText, agrees, continuations, law_of
from tests.decoding.real import (
    FAMILIES,
    NewDrafter,
    V,
    generated,
    ids_of,
    leaves_no_state,
    over,
    prompts,
    rounds_of,
)
from tests.selection import selected

TARGETS = {family: cache(lambda build=build: build(0, 2)) for family, build in FAMILIES.items()}
SEVERAL = {"composite": CompositeDrafter, "adaptive": AdaptiveDrafter}
METHODS = ("mtp", "heads", "mtp tree", "heads tree", *SEVERAL)


def network_for(way: str, model, draft_ids: torch.Tensor):
    """Heads of random weights, or a layer that starts from the target's last."""
    torch.manual_seed(7)
    if way.startswith("heads"):
        return ParallelHeads(model, draft_ids, 4).eval()
    layer = MtpLayer(model, draft_ids).eval()
    layer.start_from(model)
    return layer


def drafting(way: str, network) -> NewDrafter:
    if way in SEVERAL:
        tree = over(network, "tree")
        return lambda target: SEVERAL[way](NgramDrafter(3, 2), tree(target))
    return over(network, "tree" if way.endswith("tree") else "chain")


@pytest.mark.parametrize(
    ("family", "way"),
    selected(
        product(FAMILIES, METHODS),
        [
            *(("llama", "mtp"), ("llama", "heads tree"), ("gemma", "heads"), ("gemma", "mtp tree")),
            *(("deepseek", "composite"), ("deepseek", "mtp tree"), ("llama", "adaptive")),
        ],
    ),
)
def test_greedy_equals_generate_and_only_the_draft_vocabulary_is_drafted(family, way):
    """The draft vocabulary is joined by the tokens of the text."""
    model = TARGETS[family]()
    network = network_for(way, model, torch.arange(0, V, 2))
    drafted, joined = 0, 0
    for prompt in prompts(3):
        rounds = rounds_of(model, drafting(way, network), prompt)
        assert ids_of(rounds) == generated(model, prompt)
        text = list(prompt)
        for round_ in rounds:
            others = [token.id for token in round_.drafted if token.id % 2]
            if way not in SEVERAL:
                assert set(others) <= set(text)
            drafted, joined = drafted + len(round_.drafted), joined + len(others)
            text += [token.id for token in round_.tokens]
    assert drafted > 30
    assert joined > 6


def test_a_vocabulary_that_the_text_extends_has_few_sizes_and_only_its_tokens_can_be_drafted(monkeypatch):
    monkeypatch.setattr(hidden, "LEAST", 4)
    model = FAMILIES["llama"](0, 2)
    heads = network_for("heads", model, torch.arange(0, V, 2))
    vocabulary, states = hidden.TextVocabulary(heads), torch.randn(3, model.config.hidden_size)
    everything = torch.nn.functional.linear(states, model.lm_head.weight)
    text, sizes = [], []
    for new in ([], [1, 2, 3], [3, 5, 7, 9], [11, 38], [39], range(13, V)):
        text += new
        ids = vocabulary.read(text)
        logits = vocabulary.logits(states)
        assert len(set(ids.tolist())) == len(ids) == logits.shape[1]
        drafted = ~logits[0].isneginf()
        assert set(ids[drafted].tolist()) == {*range(0, V, 2), *text}
        torch.testing.assert_close(logits[:, drafted], everything[:, ids[drafted]])
        sizes.append(len(ids))
    assert sizes == [24, 24, 28, 28, 28, 40]
    vocabulary.clear()
    assert len(vocabulary.read([1])) == 24


@pytest.mark.parametrize("way", ["mtp", "heads"])
def test_nothing_is_drafted_before_the_targets_first_pass(way):
    model = FAMILIES["llama"](0, 2)
    first, second, *_ = rounds_of(model, over(network_for(way, model, torch.arange(V))), [3, 1, 4])
    assert not first.drafted
    assert len(second.drafted) == 4


def test_heads_draft_no_more_tokens_than_there_are():
    model = FAMILIES["llama"](0, 2)
    heads = network_for("heads", model, torch.arange(V))
    _, second, *_ = rounds_of(model, over(heads), [3, 1, 4], lookahead=9)
    assert len(second.drafted) == 4


def test_what_was_drafted_before_leaves_no_state():
    model = FAMILIES["llama"](0, 2)
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    rounds = [(3, 5), (3, 6), (3, 10)]  # one, none and three drafted tokens accepted
    leaves_no_state(model, over(network_for("mtp", model, torch.arange(V))), text, rounds)


def test_a_composite_prefers_what_it_names_first():
    first = ScriptedDrafter(lambda ids, k: [1] * k if len(ids) % 2 else [])
    second = ScriptedDrafter(lambda ids, k: [2] * k)
    both = CompositeDrafter(first, second)
    assert both.propose([0], 2, 0.0, GREEDY).ids == [1, 1]
    assert both.propose([0, 0], 2, 0.0, GREEDY).ids == [2, 2]
    both.commit(1)
    assert first.committed == second.committed == [1]


@pytest.mark.parametrize(
    ("way", "draws"), selected([("mtp", 200), ("heads", 200), *((way, 2_000) for way in METHODS)], [("mtp", 200)])
)
def test_sampled_runs_follow_the_targets_law_over_all_continuations(way, draws):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.8,
        )
    ).eval()
    # Some seeds are unlucky: of the first 200 one writes what is expected 0.02 times.
    seeds = range(1_000, 1_000 + draws)
    samplers = [Sampler(Request("x", temperature=0.9, top_k=3, seed=seed), model.device) for seed in seeds]
    draft_ids = torch.tensor([0, 1, 3])
    chances = continuations(law_of(model), samplers[0], PROMPT)
    counts = dict.fromkeys(chances, 0)
    new_drafter = drafting(way, network_for(way, model, draft_ids))
    for sampler in samplers:
        target = EagerRunner(model)
        drafter = new_drafter(target)
        rounds = decode(target, drafter, Lookahead(2), sampler, NoText(), PROMPT, LENGTH, ())
        counts[tuple(ids_of(rounds))] += 1
    assert agrees(list(counts.values()), torch.tensor(list(chances.values())))
