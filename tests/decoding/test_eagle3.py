"""EAGLE-3 heads of random weights on transformers' real classes in float32."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from playground.decoding.runners.eager import EagerRunner
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from tests.decoding.fakes import GREEDY
from tests.decoding.real import FAMILIES, V, built, generated, ids_of, prompts, rounds_of
from tests.models.networks.test_eagle3 import LAYOUTS, Reference, load, loaded, write_head
from tests.models.networks.test_peagle import load as load_peagle
from tests.models.networks.test_peagle import write as write_peagle
from tests.selection import selected

METHODS = ("eagle3", "tree", "composite")
EVEN = list(range(0, V, 2))
LAYERS = (1, 2, 3)  # of 7
KINDS = [("llama", "safeai"), ("gemma", "speculators"), ("llama", "speculators-3.1")]  # targets, layouts


TARGETS = {family: cache(lambda build=build: build(0, 7)) for family, build in FAMILIES.items()}
EVERY = [(way, *kind) for way in METHODS for kind in KINDS]


def drafting(model, way, head):
    return built(LoadedPair(custom_pair("big", "head", "eagle3"), loaded(model), head), way, lookahead=4, nodes=24)


@pytest.mark.parametrize(
    ("way", "family", "layout"),
    selected(EVERY, [("tree", *KINDS[0]), ("eagle3", *KINDS[1]), ("composite", *KINDS[2])]),
)
def test_greedy_equals_generate_and_only_the_draft_vocabulary_is_drafted(way, family, layout, tmp_path):
    target = TARGETS[family]()
    head = load(write_head(tmp_path / "head", target, EVEN, **LAYOUTS[layout]), target)
    drafted = accepted = 0
    for prompt in prompts(4):
        rounds = rounds_of(target, drafting(target, way, head), prompt)
        assert ids_of(rounds) == generated(target, prompt)
        tokens = [token for round_ in rounds for token in round_.drafted]
        drafted += len(tokens)
        accepted += sum(token.decision == "accepted" for token in tokens)
        if way != "composite":
            assert all(token.id in EVEN for token in tokens)
    assert drafted > 40
    assert accepted > 1


@pytest.mark.parametrize(
    ("way", "family", "layout"),
    selected(
        [each for each in EVERY if each[0] != "composite"],
        [("eagle3", *KINDS[0]), ("tree", *KINDS[1]), ("eagle3", *KINDS[2])],
    ),
)
def test_whatever_was_accepted_before_the_draft_is_that_of_the_paper_from_scratch(way, family, layout, tmp_path):
    """Drafts after arbitrary continuations: of each pass over four tokens one to four are accepted."""
    model = TARGETS[family]()
    folder = write_head(tmp_path / "head", model, list(range(V)), **LAYOUTS[layout])
    (prompt,) = prompts(1)
    text = [*prompt, *generated(model, prompt)]
    reference, target = Reference(folder, model, LAYERS), EagerRunner(model)
    drafter = drafting(model, way, load(folder, model))(target)
    target.forward(prompt, keep=1)
    target.commit(len(prompt), [])
    drafter.commit(len(prompt))
    depths = []
    for accepted in (1, 0, 3, 2, 0, 3):
        known = target.length + 1
        draft = drafter.propose(text[:known], 4, 0.0, GREEDY)
        depths.append(draft.depth)
        for i, (id_, q) in enumerate(zip(draft.ids, draft.q, strict=True)):
            before = [draft.ids[j] for j in draft.path(i)[:-1]]
            expected = reference.logits(text[:known], before).softmax(-1)
            assert q == pytest.approx(float(expected[id_]), rel=2e-3)
            assert way == "tree" or id_ == int(expected.argmax())
        target.forward(text[known - 1 : known + 3], keep=4)
        target.commit(known, list(range(accepted)))
        drafter.commit(known + accepted)
    assert min(depths) > 0 and max(depths) > 2


@pytest.mark.parametrize(
    ("kind", "way"),
    selected(
        itertools.product(FAMILIES, ("peagle", "tree", "composite")),
        [("llama", "tree"), ("gemma", "composite"), ("deepseek", "peagle")],
    ),
)
def test_p_eagle_greedy_equals_generate(kind, way, tmp_path):
    model = TARGETS[kind]()
    folder = write_peagle(tmp_path / "head", model, EVEN)
    new_drafter = built(LoadedPair(custom_pair("big", folder), loaded(model), load_peagle(folder, model)), way)
    decisions = []
    for prompt in prompts(3):
        rounds = rounds_of(model, new_drafter, prompt)
        assert ids_of(rounds) == generated(model, prompt)
        decisions += [token.decision for round_ in rounds for token in round_.drafted]
    # Random drafts are rarely right for this Gemma.
    assert ({"rejected"} if kind == "gemma" else {"accepted", "rejected"}) <= set(decisions)


def test_a_head_with_a_window_drafts_on_after_it(tmp_path):
    target = TARGETS["llama"]()
    window = dict(layer_types=["sliding_attention"], sliding_window=6, use_sliding_window=True)
    head = load(write_head(tmp_path / "head", target, EVEN, **window), target)
    for way, prompt in zip(METHODS, prompts(3), strict=True):
        assert ids_of(rounds_of(target, drafting(target, way, head), prompt)) == generated(target, prompt)
