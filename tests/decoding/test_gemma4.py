"""Gemma 4 with its assistants: what the engine promises, and what transformers' own way of drafting does, on
transformers' real classes in float32."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from playground.decoding.drafters.gemma4 import Gemma4Branches
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models.networks.gemma4 import Gemma4Assistant
from tests.decoding import real
from tests.decoding import test_transformers_models as engine
from tests.decoding.gemma4 import KINDS, WINDOW, gemma4_assistant, gemma4_target
from tests.decoding.graphs import Recorder
from tests.decoding.real import V, generated, ids_of, leaves_no_state, over, prompts, rounds_of
from tests.decoding.test_prefix_cache import drafts, goes_on
from tests.selection import selected

TOKENS = 12
SAMPLED = dict(temperature=0.8, top_p=0.9)
TEXT = prompts(1)[0] * 2 + list(range(1, 12))  # far longer than the window


@pytest.fixture(scope="module", params=KINDS)
def target(request):
    return gemma4_target(request.param, V)


@pytest.fixture(scope="module", params=["dense", "ordered"])
def assistant(target, request):
    return gemma4_assistant(target, ordered=request.param == "ordered")


@pytest.fixture(scope="module")
def models(target):
    return target, None


# The engine's own tests, on these targets.
test_rolled_back_caches_give_the_logits_of_a_fresh_pass = engine.test_rolled_back_caches_give_the_logits_of_a_fresh_pass
test_of_a_tree_each_branch_is_what_it_is_alone = (
    engine.test_of_a_tree_each_branch_is_what_it_is_alone_and_leaves_the_cache_as_if_it_were
)


@cache
def written(kind: str, n: int):
    model = gemma4_target(kind, V)
    return [generated(model, prompt, TOKENS) for prompt in prompts(n)]


@cache
def runs(kind: str, way: str, ordered: bool, n: int):
    """The rounds after each of n prompts."""
    model = gemma4_target(kind, V)
    new_drafter = over(Gemma4Assistant(gemma4_assistant(model, ordered), model), way)
    return [rounds_of(model, new_drafter, prompt, max_new_tokens=TOKENS) for prompt in prompts(n)]


@pytest.mark.parametrize(
    ("kind", "n", "way", "ordered"),
    selected(
        [
            (kind, n, way, way == "tree")
            for kind, n in (("text", 4), ("whole", 4), ("moe", 3), ("unified", 3))
            for way in ("chain", "tree")
        ],
        [
            ("text", 4, "chain", False),
            ("whole", 4, "tree", True),
            ("moe", 3, "chain", False),
            ("unified", 3, "tree", True),
        ],
    ),
)
def test_greedy_equals_generate(kind, n, way, ordered):
    drafted = kept = 0
    for text, (first, *rounds) in zip(written(kind, n), runs(kind, way, ordered, n), strict=True):
        assert ids_of([first, *rounds]) == text
        assert not first.drafted, "there is nothing to draft from before the target's first pass"
        drafted += sum(len(round_.drafted) for round_ in rounds)
        kept += sum(token.decision == "accepted" for round_ in rounds for token in round_.drafted)
    assert 0 < kept < drafted


def static_runner(model, graphs: Graphs | None = None) -> StaticRunner:
    return StaticRunner(StaticModel(model, graphs or Graphs("as it is", None)), 64)


def passed(model, *passes: tuple[list[int], int], new=EagerRunner) -> Runner:
    """A target after passes: for each the tokens to feed and the length committed then. `new`: makes its runner."""
    cached = new(model)
    cached.watch([-1])
    cached.share_kv()
    for ids, length in passes:
        cached.forward(ids, keep=1)
        cached.commit(length)
    return cached


@torch.inference_mode()
def expected_kv(model, text):
    states = model(torch.tensor([text]), return_shared_kv_states=True).shared_kv_states
    return {
        kind: tuple(state[:, :, -(WINDOW + 1) :] if kind == "sliding_attention" else state for state in pair)
        for kind, pair in states.items()
    }


@pytest.mark.parametrize("new", [EagerRunner, static_runner])
@pytest.mark.parametrize("length", [4, WINDOW, WINDOW + 1, WINDOW + 2, 17])
def test_the_shared_states_are_those_that_the_target_returns_for_the_committed_text(target, length, new):
    rejected = [9] * 5
    cached = passed(target, (TEXT[:length] + rejected, length), new=new)
    one_more = passed(target, (TEXT[: length - 2], length - 2), (TEXT[length - 2 : length - 1], length - 1), new=new)
    one_more.forward([*TEXT[length - 1 : length], *rejected], keep=1)
    one_more.commit(length)
    tree = passed(target, (TEXT[: length - 3], length - 3), new=new)
    tree.forward([TEXT[length - 3], 9, TEXT[length - 2], 9, TEXT[length - 1], 9], keep=1, tree=[-1, -1, 1, 1, 0])
    tree.commit(length - 2, [1, 3])
    for each in (cached, one_more, tree):
        torch.testing.assert_close(each.shared_kv, expected_kv(target, TEXT[:length]), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def upstream_logits(model, assistant, text, k):
    """Of transformers' own drafter, after a prompt: all of the text but the last token."""
    assistant.generation_config.num_assistant_tokens = k
    generation = model.generation_config
    generation.max_length = 1_000
    drafter = SinglePositionMultiTokenCandidateGenerator(assistant, model.get_input_embeddings(), generation)
    ids = torch.tensor([text])
    out = model(ids[:, :-1], output_hidden_states=True, return_shared_kv_states=True)
    mask = {"attention_mask": torch.ones_like(ids)}
    return drafter.get_candidates(ids, mask, out, is_first_iteration=False, n_last_matches=0)


@pytest.mark.parametrize("length", [2, WINDOW + 1, WINDOW + 2, WINDOW + 3, len(TEXT)])
def test_a_draft_is_that_of_transformers_after_the_prompt(target, assistant, length):
    """Also where the text is far longer than the sliding window, and whatever was rejected before."""
    text = TEXT[:length]
    drafted, logits = upstream_logits(target, assistant, text, 4)
    cached = passed(target, ([*text[:-1], 7, 7], length - 1))
    branches = Gemma4Branches(Gemma4Assistant(assistant, target), cached)
    with torch.inference_mode():
        ours = [branches.root(text), *(branches.grow([id_], [0]) for id_ in drafted[0, length:-1].tolist())]
    looked_at = torch.cat(ours).isfinite()
    assert looked_at.float().mean() == (0.75 if assistant.config.use_ordered_embeddings else 1)
    torch.testing.assert_close(torch.cat(ours)[looked_at], logits[0][looked_at], rtol=1e-3, atol=1e-4)


def test_branches_side_by_side_are_what_each_is_alone(target, assistant):
    cached = passed(target, (TEXT[:-1], len(TEXT) - 1))
    network = Gemma4Assistant(assistant, target)
    branches, alone = Gemma4Branches(network, cached), Gemma4Branches(network, cached)
    tokens = list(range(1, 11))  # more than the window is long
    rows = [*range(9, -1, -1)]
    with torch.inference_mode():
        branches.root(TEXT)
        first = branches.grow(tokens, [0] * 10)
        second = branches.grow(tokens, rows)
        for i, row in enumerate(rows):
            alone.root(TEXT)
            torch.testing.assert_close(first[row], alone.grow([tokens[row]], [0])[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(second[i], alone.grow([tokens[i]], [0])[0], rtol=1e-4, atol=1e-4)


def test_what_was_drafted_before_leaves_no_state(target, assistant):
    rounds = [(3, length) for length in (9, 10, 14, 15, 16)]  # one, none, three, none and none accepted
    leaves_no_state(target, over(Gemma4Assistant(assistant, target)), TEXT, rounds, first=7)


def test_the_tokens_of_transformers_own_drafting_in_no_more_passes(monkeypatch):
    model = gemma4_target("text", V)
    assistant = gemma4_assistant(model)
    assistant.generation_config.num_assistant_tokens = 4
    passes = []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *a, **k: passes.append(1) or forward(self, *a, **k))
    theirs = [generated(model, prompt, TOKENS, assistant_model=assistant) for prompt in prompts(4)]
    chains = runs("text", "chain", False, 4)
    assert [ids_of(rounds) for rounds in chains] == theirs
    assert sum(len(rounds) for rounds in chains) <= len(passes)


@pytest.mark.parametrize(
    ("way", "sampling"),
    selected(product(("chain", "tree"), ({}, SAMPLED)), [("chain", SAMPLED), ("tree", {})]),
    ids=str,
)
def test_over_a_captured_target_it_drafts_and_writes_the_same(monkeypatch, way, sampling):
    """The published models' class, whose last layer takes its keys and values from another."""
    model, recorder = gemma4_target("whole", V), Recorder()
    network = Gemma4Assistant(gemma4_assistant(model, ordered=way == "tree"), model)
    static, found = StaticModel(model, Graphs("recorded", recorder)), []
    for new in (EagerRunner, lambda _: StaticRunner(static, 96)):
        monkeypatch.setattr(real, "EagerRunner", new)
        texts = [*prompts(2), TEXT * 2]
        found.append([rounds_of(model, over(network, way), text, lookahead=9, **sampling) for text in texts])
    eager, captured = ([each for rounds in runs for each in rounds] for runs in found)
    assert ids_of(captured) == ids_of(eager) and drafts(captured) == drafts(eager)
    assert any(each.drafted for each in captured) and recorder.replays


@pytest.mark.parametrize("way", ["chain", pytest.param("tree", marks=pytest.mark.slow)])
def test_the_next_turn_goes_on_over_a_static_target(way):
    model = gemma4_target("text", V)
    static = StaticModel(model, Graphs("as it is", None))
    network = Gemma4Assistant(gemma4_assistant(model), model)
    goes_on(model, over(network, way), new=lambda _: StaticRunner(static, 64))
