"""Medusa's heads, of random weights, on transformers' real classes in float32."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch

from playground.models.networks.heads import MedusaHeads
from tests.decoding.real import FAMILIES, V, generated, ids_of, leaves_no_state, over, prompts, rounds_of
from tests.published import medusa_heads
from tests.selection import selected

TARGETS = {family: cache(lambda build=build: build(0, 2)) for family, build in FAMILIES.items()}


@cache
def plain(family: str) -> list[list[int]]:
    return [generated(TARGETS[family](), prompt) for prompt in prompts(4)]


@torch.inference_mode()
def fit(heads: MedusaHeads, family: str) -> None:
    """Sets the heads' own matrices by least squares, as Medusa labels its training: head k, from 0, reads the token
    k + 2 places after the one that a hidden state is of."""
    texts = [prompt + answer for prompt, answer in zip(prompts(4), plain(family), strict=True)]
    states = [TARGETS[family]().model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    for k, head in enumerate(heads.heads):
        inputs = torch.cat([head[:-1](hidden[: -k - 2]) for hidden in states])
        labels = torch.cat([torch.tensor(text[k + 2 :]) for text in texts])
        head[-1].weight.copy_(torch.linalg.lstsq(inputs, torch.eye(V)[labels]).solution.T)


@pytest.mark.parametrize(
    ("family", "way", "own"),  # heads with matrices of their own, or with the target's
    selected(
        product(TARGETS, ("chain", "tree"), (True, False)),
        [
            *(("llama", "chain", True), ("llama", "tree", False), ("gemma", "tree", True)),
            *(("gemma", "chain", False), ("deepseek", "tree", True)),
        ],
    ),
)
def test_greedy_equals_generate_and_heads_that_were_fitted_are_often_right(family, way, own):
    model = TARGETS[family]()
    heads = medusa_heads(model, own)
    if own:
        fit(heads, family)
    passes = tokens = 0
    for prompt, expected in zip(prompts(4), plain(family), strict=True):
        rounds = rounds_of(model, over(heads, way), prompt, lookahead=3)
        assert ids_of(rounds) == expected
        passes += len(rounds)
        tokens += len(expected)
    assert not own or passes < 0.8 * tokens


def test_heads_read_the_hidden_state_before_the_texts_last_token():
    """A head without blocks that is the target's own proposes that last token again."""
    model = TARGETS["llama"]()
    heads = MedusaHeads(model, count=1, blocks=0, own_head=False)
    for prompt in prompts(3):
        first, second, *_ = rounds_of(model, over(heads), prompt)
        assert second.drafted[0].id == first.target.id


def test_no_more_is_drafted_than_there_are_heads_and_nothing_before_the_targets_first_pass():
    model = TARGETS["llama"]()
    first, second, *_ = rounds_of(model, over(medusa_heads(model)), [3, 1, 4], lookahead=9)
    assert not first.drafted
    assert len(second.drafted) == 3


def test_what_was_drafted_before_leaves_no_state():
    model = TARGETS["llama"]()
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    leaves_no_state(model, over(medusa_heads(model)), text, [(3, 5), (3, 6), (3, 10)])
