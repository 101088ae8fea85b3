"""MTP layers of the target's own, one and several, on tiny checkpoints of transformers' real classes in float32."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from playground.errors import PlaygroundError
from playground.models.networks.mtp import NativeLayers
from playground.models.store import LoadedPair, ModelStore
from playground.presets import custom_pair
from tests.decoding import real
from tests.decoding.real import V, built, generated, ids_of, leaves_no_state, prompts, rounds_of
from tests.decoding.test_static import static_runner
from tests.native import native_places, save_native  # noqa: F401 (a fixture)
from tests.selection import selected

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
    """What a model writes after each of the prompts."""
    return functools.cache(lambda *model: [generated(native(*model).target.model, prompt) for prompt in prompts(3)])


def run(pair, way, prompt, **options):
    return rounds_of(pair.target.model, built(pair, way, nodes=12), prompt, **options)


@pytest.mark.parametrize(
    ("way", "family", "layers"),
    selected(
        [*(("mtp", *model) for model in ONE + SEVERAL), ("tree", "deepseek", 1), ("tree", "mellum", 1)],
        [("mtp", "glm", 1), ("mtp", "qwen", 1), ("mtp", "deepseek", 3), ("tree", "deepseek", 1), ("tree", "mellum", 1)],
    ),
)
def test_greedy_equals_generate_also_with_more_tokens_than_layers(native, plain, way, family, layers):
    pair, decisions = native(family, layers), Counter()
    for prompt, wanted in zip(prompts(3), plain(family, layers), strict=True):
        rounds = run(pair, way, prompt)
        assert ids_of(rounds) == wanted
        decisions.update(token.decision for round_ in rounds for token in round_.drafted)
    assert decisions["accepted"] > 1 and decisions["rejected"] > 10


@pytest.mark.parametrize("way", ["mtp", "tree"])
def test_a_single_layer_drafts_the_same_beside_a_static_target(native, way, monkeypatch):
    pair = native("deepseek", 1)
    eager = run(pair, way, prompts(2)[1])
    monkeypatch.setattr(real, "EagerRunner", static_runner)
    static = run(pair, way, prompts(2)[1])
    assert [[token.id for token in r.drafted] for r in static] == [[token.id for token in r.drafted] for r in eager]
    assert ids_of(static) == ids_of(eager)


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
    for prompt in [prompt for prompt in prompts(4) if len(prompt) > layers]:  # transformers fails on shorter ones
        ours = run(pair, "mtp", prompt, lookahead=layers)
        passes.clear()
        assert generated(model, prompt, use_mtp=True) == ids_of(ours)
        assert len(ours) == len(passes)


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 1), ("mellum", 1), *SEVERAL])
def test_what_was_drafted_before_leaves_no_state(native, family, layers):
    pair = native(family, layers)
    text = [3, 1, 4, *generated(pair.target.model, [3, 1, 4])]
    rounds = [(3, 5), (1, 6), (2, 7), (5, 12), (4, 13), (3, 14)]
    leaves_no_state(pair.target.model, built(pair, "mtp"), text, rounds)


def test_a_layer_sees_a_place_of_the_text_once_and_again_only_those_whose_tokens_were_drafted(native, monkeypatch):
    pair, fed, calls = native("deepseek", 3), Counter(), Counter()
    forward = NativeLayers.run

    def counted(self, k, ids, hidden, cache):
        fed[k] += ids.shape[1]
        calls[k] += 1
        return forward(self, k, ids, hidden, cache)

    monkeypatch.setattr(NativeLayers, "run", counted)
    rounds = run(pair, "mtp", prompts(1)[0] + [5, 6, 7], lookahead=3, ends=())
    *before, last = [i for i, round_ in enumerate(rounds) if len(round_.drafted) == 3]
    places = len(prompts(1)[0]) + 3 - 1 + sum(len(round_.tokens) for round_ in rounds[:last])
    assert calls[2] == len(before) + 1
    assert fed[2] == places - 2 + 2 * calls[2]


@pytest.mark.parametrize(("family", "layers", "why"), [("glm", 3, "several MTP"), ("qwen", 1, "recurrent")])
@pytest.mark.parametrize("way", ["tree", "composite"])
def test_trees_are_refused_where_they_cannot_be_grown(native, way, family, layers, why):
    with pytest.raises(PlaygroundError, match=why):
        run(native(family, layers), way, [3, 1, 4])
