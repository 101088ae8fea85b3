"""MTP layers of the target's own, one and several, on tiny checkpoints of transformers' real classes in float32."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.build import build_drafter
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.errors import PlaygroundError
from playground.models.native_mtp import NativeLayers
from playground.models.store import LoadedPair, ModelStore
from playground.presets import custom_pair
from playground.trace import Lane, Request
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.test_transformers_models import V, generated, ids_of, prompts
from tests.native import native_places, save_native  # noqa: F401 (a fixture)

ONE = [("deepseek", 1), ("glm", 1), ("mellum", 1), ("qwen", 1)]
SEVERAL = [("deepseek", 3), ("glm", 3)]


@pytest.fixture(scope="module")
def native(native_places, tiny_tokenizer, tmp_path_factory):  # noqa: F811
    """What makes, and keeps, the pair of a family and a number of layers."""

    @functools.cache
    def pair_of(family: str, layers: int, vocab: int = V) -> LoadedPair:
        folder = save_native(family, layers, tmp_path_factory.mktemp("native") / "tiny", tiny_tokenizer, vocab)
        pair = custom_pair(str(folder), None, "mtp")
        return ModelStore().get(pair, drafter="mtp", dtype="float32", device="cpu", progress=lambda step: None)

    return pair_of


@pytest.fixture(scope="module")
def plain(native):
    """What a model writes behind each of the twenty prompts."""
    return functools.cache(lambda *model: [generated(native(*model).target.model, prompt) for prompt in prompts(20)])


def rounds_of(pair, way, prompt, lookahead=4, max_new_tokens=24, sampler=None, ends=frozenset({V - 1})):
    target, sampler = CachedModel(pair.target.model), sampler or Sampler(Request("x"), torch.device("cpu"))
    drafter = build_drafter(pair, Lane(way, "tiny", way, nodes=12), target, sampler)
    detokenizer = Detokenizer(NumberTokenizer(), prompt)
    return list(decode(target, drafter, Constant(lookahead), sampler, detokenizer, prompt, max_new_tokens, ends))


@pytest.mark.parametrize(
    ("way", "family", "layers"),
    [("mtp", *model) for model in ONE + SEVERAL] + [("tree", "deepseek", 1), ("tree", "mellum", 1)],
)
def test_greedy_equals_generate_also_with_more_tokens_than_layers(native, plain, way, family, layers):
    pair, decisions = native(family, layers), Counter()
    for prompt, wanted in zip(prompts(20), plain(family, layers), strict=True):
        rounds = rounds_of(pair, way, prompt)
        assert ids_of(rounds) == wanted
        decisions.update(token.decision for round_ in rounds for token in round_.drafted)
    assert decisions["accepted"] > 50 and decisions["rejected"] > 50


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 1), ("glm lite", 1), ("mellum", 1), *SEVERAL])
def test_as_many_rounds_as_transformers_needs_passes(native, family, layers, monkeypatch):
    pair = native(family, layers)
    model, passes = pair.target.model, []
    forward = type(model).forward

    @functools.wraps(forward)
    def counted(*args, **kwargs):
        passes.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(type(model), "forward", counted)
    for prompt in [prompt for prompt in prompts(6) if len(prompt) > layers]:  # transformers fails on shorter ones
        ours = rounds_of(pair, "mtp", prompt, lookahead=layers)
        passes.clear()
        assert generated(model, prompt, use_mtp=True) == ids_of(ours)
        assert len(ours) == len(passes)


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 1), ("mellum", 1), *SEVERAL])
def test_what_was_drafted_before_leaves_nothing_behind(native, family, layers):
    """Behind any number of rounds, some accepted and some not, of any depth, the draft is that of a drafter which sees
    the text for the first time."""
    pair = native(family, layers)
    text = [3, 1, 4, *generated(pair.target.model, [3, 1, 4])]
    target, sampler = CachedModel(pair.target.model), Sampler(Request("x"), torch.device("cpu"))
    drafter = build_drafter(pair, Lane("mtp", "tiny", "mtp"), target, sampler)
    target.forward(text[:3], keep=1)
    target.keep(3)
    drafter.commit(3)
    for depth, stands in ((3, 5), (1, 6), (2, 7), (5, 12), (4, 13), (3, 14)):
        known = target.length + 1
        fresh_target = CachedModel(pair.target.model)
        fresh = build_drafter(pair, Lane("mtp", "tiny", "mtp"), fresh_target, sampler)
        fresh_target.forward(text[: known - 1], keep=1)
        fresh.commit(known - 1)
        draft, wanted = drafter.propose(text[:known], depth, 0.0), fresh.propose(text[:known], depth, 0.0)
        assert draft.ids == wanted.ids
        assert draft.q == pytest.approx(wanted.q, rel=1e-4)
        target.forward(text[target.length : known + 5], keep=6)
        target.keep(stands)
        drafter.commit(stands)


def test_a_layer_sees_a_place_of_the_text_once_and_again_only_those_whose_tokens_were_drafted(native, monkeypatch):
    pair, fed, calls = native("deepseek", 3), Counter(), Counter()
    run = NativeLayers.run

    def counted(self, k, ids, hidden, cache):
        fed[k] += ids.shape[1]
        calls[k] += 1
        return run(self, k, ids, hidden, cache)

    monkeypatch.setattr(NativeLayers, "run", counted)
    rounds = rounds_of(pair, "mtp", prompts(1)[0] + [5, 6, 7], lookahead=3, ends=())
    *before, last = [i for i, round_ in enumerate(rounds) if len(round_.drafted) == 3]
    places = len(prompts(1)[0]) + 3 - 1 + sum(len(round_.tokens) for round_ in rounds[:last])
    assert calls[2] == len(before) + 1
    assert fed[2] == places - 2 + 2 * calls[2]


@pytest.mark.parametrize(
    ("way", "family", "layers"), [("mtp", "deepseek", 1), ("mtp", "deepseek", 3), ("tree", "glm", 1)]
)
@pytest.mark.parametrize(("family", "layers", "why"), [("glm", 3, "several MTP layers"), ("qwen", 1, "recurrent")])
@pytest.mark.parametrize("way", ["tree", "composite"])
def test_trees_are_refused_where_they_cannot_be_grown(native, way, family, layers, why):
    with pytest.raises(PlaygroundError, match=why):
        rounds_of(native(family, layers), way, [3, 1, 4])
