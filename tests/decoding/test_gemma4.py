"""Gemma 4 with its assistants: what the engine promises, and what transformers' own way of drafting does, on
transformers' real classes in float32."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.gemma4 import Gemma4Branches
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.models.gemma4 import Gemma4Assistant
from playground.trace import Request
from tests.decoding import test_transformers_models as engine
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.gemma4 import WINDOW, gemma4_assistant, gemma4_target
from tests.decoding.test_transformers_models import V, generated, ids_of, prompts
from tests.decoding.test_verify import agrees

KINDS = ("text", "whole", "moe", "unified")
TEXT = prompts(1)[0] * 2 + list(range(1, 12))  # far longer than the window


@pytest.fixture(scope="module", params=KINDS)
def target(request):
    return gemma4_target(request.param, V)


@pytest.fixture(scope="module")
def models(target):
    """A target, and one that drafts for it as an ordinary assistant: for the tests of the engine."""
    return target, gemma4_target("text", V, seed=1)


@pytest.fixture(scope="module", params=["dense", "ordered"])
def assistant(target, request):
    return gemma4_assistant(target, ordered=request.param == "ordered")


# The engine's own tests, on these models.
test_greedy_equals_generate_token_for_token = engine.test_greedy_equals_generate_token_for_token
test_rolled_back_caches_give_the_logits_of_a_fresh_pass = engine.test_rolled_back_caches_give_the_logits_of_a_fresh_pass
test_of_a_tree_each_branch_is_what_it_is_alone = (
    engine.test_of_a_tree_each_branch_is_what_it_is_alone_and_leaves_the_cache_as_if_it_were
)


def drafter_for(way: str, target: CachedModel, assistant, sampler: Sampler, ends=(V - 1,)):
    branches = Gemma4Branches(Gemma4Assistant(assistant, target.model), target)
    if way == "tree":
        return TreeDrafter(branches, 12, ends)
    return ChainDrafter(branches, DraftChoice(branches.draft_ids, target.vocab_size, sampler), ends)


def rounds_of(model, assistant, way, prompt, lookahead=4, max_new_tokens=24, **sampling):
    target, sampler = CachedModel(model), Sampler(Request("x", **sampling), model.device)
    drafter = drafter_for(way, target, assistant, sampler)
    detokenizer = Detokenizer(NumberTokenizer(), prompt)
    return list(decode(target, drafter, Constant(lookahead), sampler, detokenizer, prompt, max_new_tokens, {V - 1}))


@pytest.mark.parametrize("way", ["chain", "tree"])
def test_greedy_equals_generate(target, assistant, way):
    rounds = [rounds_of(target, assistant, way, prompt) for prompt in prompts(20)]
    assert [ids_of(run) for run in rounds] == [generated(target, prompt) for prompt in prompts(20)]
    assert not any(run[0].drafted for run in rounds), "there is nothing to draft from before the target's first pass"
    assert all(run[1].drafted for run in rounds if len(run) > 2)


def passed(model, *passes: tuple[list[int], int], branches=None) -> CachedModel:
    """A target behind passes, each of tokens to feed and the length of the text that stands then."""
    cached = CachedModel(model)
    cached.watch([-1])
    cached.share_kv()
    for ids, stands in passes:
        cached.forward(ids, keep=1)
        cached.keep(stands)
    return cached


@torch.inference_mode()
def expected_kv(model, text):
    states = model(torch.tensor([text]), return_shared_kv_states=True).shared_kv_states
    return {
        kind: tuple(state[:, :, -(WINDOW + 1) :] if kind == "sliding_attention" else state for state in pair)
        for kind, pair in states.items()
    }


@pytest.mark.parametrize("stands", [3, WINDOW, WINDOW + 1, WINDOW + 2, 17])
def test_the_shared_states_are_those_that_the_target_returns_for_the_text_that_stands(target, stands):
    rejected = [9] * 5
    cached = passed(target, (TEXT[:stands] + rejected, stands))
    one_more = passed(target, (TEXT[: stands - 2], stands - 2), (TEXT[stands - 2 : stands - 1], stands - 1))
    one_more.forward([*TEXT[stands - 1 : stands], *rejected], keep=1)
    one_more.keep(stands)
    tree = passed(target, (TEXT[: stands - 2], stands - 2))
    tree.forward([9, TEXT[stands - 2], 9, TEXT[stands - 1], 9], keep=1, branches=[-1, -1, 1, 1, 0])
    tree.keep_branch(stands - 2, [1, 3])
    for each in (cached, one_more, tree):
        torch.testing.assert_close(each.shared_kv, expected_kv(target, TEXT[:stands]), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def upstream_logits(model, assistant, text, k):
    """Of transformers' own drafter, behind a prompt: all of the text but the last token."""
    assistant.generation_config.num_assistant_tokens = k
    generation = model.generation_config
    generation.max_length = 1_000
    drafter = SinglePositionMultiTokenCandidateGenerator(assistant, model.get_input_embeddings(), generation)
    ids = torch.tensor([text])
    out = model(ids[:, :-1], output_hidden_states=True, return_shared_kv_states=True)
    mask = {"attention_mask": torch.ones_like(ids)}
    return drafter.get_candidates(ids, mask, out, is_first_iteration=False, n_last_matches=0)


@pytest.mark.parametrize("length", [2, WINDOW + 1, WINDOW + 2, WINDOW + 3, len(TEXT)])
def test_a_draft_is_that_of_transformers_behind_the_prompt(target, assistant, length):
    """Also where the text is far longer than the sliding window, and whatever was rejected before."""
    text = TEXT[:length]
    drafted, logits = upstream_logits(target, assistant, text, 4)
    cached = passed(target, ([*text[:-1], 7, 7], length - 1))
    branches = Gemma4Branches(Gemma4Assistant(assistant, target), cached)
    with torch.inference_mode():
        ours = [branches.root(text), *(branches.grow([id_], [0]) for id_ in drafted[0, length:-1].tolist())]
    looked_at = torch.cat(ours).isfinite()
    assert looked_at.float().mean() == (0.5 if assistant.config.use_ordered_embeddings else 1)
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


def test_what_was_drafted_before_leaves_nothing_behind(target, assistant):
    """Behind any number of rounds, some accepted and some not, the draft is that of a drafter which sees the text for
    the first time."""
    cached, sampler = CachedModel(target), Sampler(Request("x"), target.device)
    drafter = drafter_for("chain", cached, assistant, sampler)
    cached.forward(TEXT[:7], keep=1)
    cached.keep(7)
    drafter.commit(7)
    for stands in (9, 10, 14, 15, 16):  # of the text, behind each round: one, none, three, none and none accepted
        known = cached.length + 1
        fresh_target = CachedModel(target)
        fresh = drafter_for("chain", fresh_target, assistant, sampler)
        fresh_target.forward(TEXT[: known - 1], keep=1)
        fresh_target.keep(known - 1)
        expected = fresh.propose(TEXT[:known], 3, 0.0)
        draft = drafter.propose(TEXT[:known], 3, 0.0)
        assert draft.ids == expected.ids
        assert draft.q == pytest.approx(expected.q, rel=1e-3)
        cached.forward(TEXT[cached.length : known + 3], keep=4)
        cached.keep(stands)
        drafter.commit(stands)


def taught(model, steps: int = 120):
    """An assistant that has learned what the target writes, so that some of its drafts are accepted."""
    assistant = gemma4_assistant(model).train()
    network = Gemma4Assistant(assistant, model)
    texts = [prompt + generated(model, prompt) for prompt in prompts(10)]
    samples = []
    for text in texts:
        for end in range(len(text) - 23, len(text) - 4):
            cached = passed(model, (text[:end], end))
            kv = {kind: tuple(s.clone() for s in pair) for kind, pair in cached.shared_kv.items()}
            samples.append((text[end : end + 4], cached.hidden[-1:].clone(), kv, end))
    optimizer = torch.optim.Adam(assistant.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss = 0.0
        for i in torch.randint(len(samples), (8,), generator=generator).tolist():
            tokens, hidden, kv, place = samples[i]
            for token, then in itertools.pairwise(tokens):
                logits, hidden = network(torch.tensor([token]), hidden, kv, place)
                loss = loss + torch.nn.functional.cross_entropy(logits, torch.tensor([then]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return assistant.eval()


def test_the_tokens_of_transformers_own_drafting_in_no_more_passes(monkeypatch):
    model = gemma4_target("text", V)
    assistant = taught(model)
    assistant.generation_config.num_assistant_tokens = 4
    passes = []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *a, **k: passes.append(1) or forward(self, *a, **k))
    ours = theirs = accepted = tree = 0
    for prompt in prompts(20):
        rounds = rounds_of(model, assistant, "chain", prompt)
        tree += len(rounds_of(model, assistant, "tree", prompt))
        passes.clear()
        assert ids_of(rounds) == generated(model, prompt, assistant_model=assistant)
        theirs += len(passes)
        ours += len(rounds)
        accepted += sum(token.decision == "accepted" for round_ in rounds for token in round_.drafted)
    print(ours, theirs, tree, accepted)
    assert accepted > 50
    assert tree <= ours <= theirs


@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("ordered", [False, True])
def test_sampled_runs_follow_the_targets_law_over_all_continuations(way, ordered):
    vocab, prompt, length = 4, [0, 1, 0, 2, 0, 1, 2, 2], 3
    model = gemma4_target("text", vocab, initializer_range=0.2, num_hidden_layers=2, num_kv_shared_layers=0)
    assistant = gemma4_assistant(model, ordered)
    sampler = Sampler(Request("x", temperature=0.9, top_k=3, seed=1), model.device)
    texts = list(itertools.product(range(vocab), repeat=length))
    with torch.inference_mode():
        rows = model(torch.tensor([prompt + list(text) for text in texts])).logits[:, len(prompt) - 1 : -1].float()
    chances = [
        float(sampler.probabilities(row)[range(length), list(text)].prod())
        for row, text in zip(rows, texts, strict=True)
    ]
    counts = dict.fromkeys(texts, 0)
    for _ in range(400):
        target = CachedModel(model)
        drafter = drafter_for(way, target, assistant, sampler, ends=())
        detokenizer = Detokenizer(NumberTokenizer(), prompt)
        rounds = decode(target, drafter, Constant(2), sampler, detokenizer, prompt, length, ())
        counts[tuple(ids_of(rounds))] += 1
    assert agrees(list(counts.values()), torch.tensor(chances))
