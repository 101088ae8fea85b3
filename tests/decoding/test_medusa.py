"""Medusa's heads, of random weights, on transformers' real classes in float32."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.medusa import MedusaBranches
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.models.medusa import MedusaHeads
from playground.trace import Request
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.test_transformers_models import FAMILIES, V, generated, ids_of, prompts
from tests.published import medusa_heads

TARGETS = {family: cache(lambda build=build: build(0, 2)) for family, build in FAMILIES.items()}


@cache
def plain(family: str) -> list[list[int]]:
    return [generated(TARGETS[family](), prompt) for prompt in prompts(20)]


def drafter_for(way: str, heads: MedusaHeads, target: CachedModel, sampler: Sampler):
    branches, ends = MedusaBranches(heads, target), {V - 1}
    if way == "tree":
        return TreeDrafter(branches, 12, ends)
    return ChainDrafter(branches, DraftChoice(branches.draft_ids, target.vocab_size, sampler), ends)


def rounds_of(model, way, heads, prompt, lookahead=3, max_new_tokens=24):
    target, sampler = CachedModel(model), Sampler(Request("x"), model.device)
    drafter = drafter_for(way, heads, target, sampler)
    detokenizer = Detokenizer(NumberTokenizer(), prompt)
    return list(decode(target, drafter, Constant(lookahead), sampler, detokenizer, prompt, max_new_tokens, {V - 1}))


@torch.inference_mode()
def fit(heads: MedusaHeads, family: str) -> None:
    """Sets the heads' own matrices by least squares, as Medusa labels its training: head k, from 0, reads the token
    k + 2 places behind the one that a hidden state is of."""
    texts = [prompt + answer for prompt, answer in zip(prompts(20), plain(family), strict=True)]
    states = [TARGETS[family]().model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    for k, head in enumerate(heads.heads):
        inputs = torch.cat([head[:-1](hidden[: -k - 2]) for hidden in states])
        labels = torch.cat([torch.tensor(text[k + 2 :]) for text in texts])
        head[-1].weight.copy_(torch.linalg.lstsq(inputs, torch.eye(V)[labels]).solution.T)


@pytest.mark.parametrize("own", [True, False], ids=["own matrices", "the target's head"])
@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("family", TARGETS)
def test_greedy_equals_generate_and_heads_that_were_fitted_are_often_right(family, way, own):
    model = TARGETS[family]()
    heads = medusa_heads(model, own)
    if own:
        fit(heads, family)
    passes = tokens = 0
    for prompt, expected in zip(prompts(20), plain(family), strict=True):
        rounds = rounds_of(model, way, heads, prompt)
        assert ids_of(rounds) == expected
        passes += len(rounds)
        tokens += len(expected)
    assert not own or passes < 0.8 * tokens


def test_heads_read_the_hidden_state_before_the_texts_last_token():
    """A head without blocks that is the target's own proposes that last token again."""
    model = TARGETS["llama"]()
    heads = MedusaHeads(model, count=1, blocks=0, own=False)
    for prompt in prompts(5):
        first, second, *_ = rounds_of(model, "chain", heads, prompt)
        assert second.drafted[0].id == first.target.id


def test_no_more_is_drafted_than_there_are_heads_and_nothing_before_the_targets_first_pass():
    model = TARGETS["llama"]()
    first, second, *_ = rounds_of(model, "chain", medusa_heads(model), [3, 1, 4], lookahead=9)
    assert not first.drafted
    assert len(second.drafted) == 3


def test_what_was_drafted_before_leaves_nothing_behind():
    """Behind any number of rounds the draft is that of a drafter which sees the text for the first time."""
    model = TARGETS["llama"]()
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    heads = medusa_heads(model)
    target, sampler = CachedModel(model), Sampler(Request("x"), model.device)
    drafter = drafter_for("chain", heads, target, sampler)
    target.forward(text[:3], keep=1)
    target.keep(3)
    drafter.commit(3)
    for stands in (5, 6, 10):
        known = target.length + 1
        fresh_target = CachedModel(model)
        fresh = drafter_for("chain", heads, fresh_target, sampler)
        fresh_target.forward(text[: known - 1], keep=1)
        fresh.commit(known - 1)
        again, expected = (one.propose(text[:known], 3, 0.0) for one in (drafter, fresh))
        assert again.ids == expected.ids
        assert again.q == pytest.approx(expected.q, rel=1e-4)
        target.forward(text[target.length : known + 3], keep=4)
        target.keep(stands)
        drafter.commit(stands)
