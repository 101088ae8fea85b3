"""The engine on transformers' real model classes and caches, against transformers' own `generate()`, in float32."""

from __future__ import annotations

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft, NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter, SuffixDrafter
from playground.decoding.runners.eager import EagerRunner
from tests.decoding.real import FAMILIES, V, generated, ids_of, prompts, rounds_of


@pytest.fixture(scope="module", params=FAMILIES)
def models(request):
    build = FAMILIES[request.param]
    return build(0, 2), build(1, 1)


def run(models, drafter: str, prompt: list[int], **options):
    target, assistant = models
    ends = {V - 1}
    new_drafter = {
        "none": lambda target: NoDrafter(),
        "ngram": lambda target: NgramDrafter(),
        "suffix": lambda target: SuffixDrafter(),
        "assistant": lambda target: AssistantDrafter(EagerRunner(assistant), V, ends),
        "itself": lambda cached: AssistantDrafter(EagerRunner(target), V, ends),
    }[drafter]
    return rounds_of(target, new_drafter, prompt, **options)


@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix", "assistant", "itself"])
def test_greedy_equals_generate_token_for_token(models, drafter):
    for prompt in prompts(2):
        assert ids_of(run(models, drafter, prompt)) == generated(models[0], prompt)


def test_a_target_that_drafts_for_itself_is_always_accepted(models):
    rounds = run(models, "itself", [3, 1, 4], lookahead=5, max_new_tokens=30)
    decisions = {token.decision for round_ in rounds for token in round_.drafted}
    assert decisions == {"accepted"}
    assert len(rounds) == -(-len(ids_of(rounds)) // 6)


def test_sampling_with_the_target_as_its_own_assistant_is_always_accepted(models):
    """p and q come from the same settings: were either processed differently, some tokens would be rejected."""
    rounds = run(models, "itself", [3, 1, 4], temperature=0.8, top_k=7, top_p=0.9, repetition_penalty=1.2)
    drafted = [token for round_ in rounds for token in round_.drafted]
    kept = sum(token.decision == "accepted" for token in drafted)
    assert kept >= len(drafted) - 1  # a rounding error may turn one draw in thousands
    assert all(token.p == pytest.approx(token.q, rel=1e-3) for token in drafted if token.decision == "accepted")


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_an_assistant_drafts_nothing_after_a_token_that_its_embedding_lacks(penalty):
    """A target padded wider than its assistant, as Qwen2.5-7B (152,064 rows) is than the 0.5B (151,936)."""
    target, assistant = FAMILIES["llama"](0, 2), FAMILIES["llama"](1, 1)
    target.resize_token_embeddings(2 * V, mean_resizing=False)

    def new_drafter(cached: EagerRunner) -> AssistantDrafter:
        return AssistantDrafter(EagerRunner(assistant), cached.vocab_size, ())

    drafted = unknown = 0
    for seed in range(5):
        options = dict(max_new_tokens=40, ends=(), temperature=5.0, repetition_penalty=penalty, seed=seed)
        rounds = rounds_of(target, new_drafter, [3, 1, 4], **options)
        assert len(ids_of(rounds)) == 40
        lacks = [any(token.id >= V for token in round_.tokens) for round_ in rounds]
        first = lacks.index(True)
        assert all(round_.drafted for round_ in rounds[: first + 1] if round_ is not rounds[-1])
        assert not any(round_.drafted for round_ in rounds[first + 1 :])
        drafted += first + 1
        unknown += sum(lacks)
    assert drafted and unknown > 5


@pytest.mark.parametrize("drafter", ["ngram", "assistant", pytest.param("suffix", marks=pytest.mark.slow)])
def test_no_more_rounds_than_transformers_needs_passes(models, drafter, monkeypatch):
    target, assistant = models
    assistant.generation_config.num_assistant_tokens = 4
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    options = {"assistant_model": assistant} if drafter == "assistant" else {"prompt_lookup_num_tokens": 4}
    ours = theirs = 0
    passes = []
    forward = type(target).forward

    def counted(self, *args, **kwargs):
        passes.append(self is target)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(target), "forward", counted)
    for prompt in prompts(5):
        ours += len(run(models, drafter, prompt))
        passes.clear()
        generated(target, prompt, **options)
        theirs += sum(passes)
    assert ours <= theirs


def test_rolled_back_caches_give_the_logits_of_a_fresh_pass(models):
    target = models[0]
    text = prompts(1)[0] * 3 + list(range(1, 12))
    cached = EagerRunner(target)
    cached.forward(text[:9], keep=1)
    cached.commit(9)
    cached.forward([*text[9:11], 7, 7, 7], keep=4)
    cached.commit(11)
    cached.forward([*text[11:20], 5, 5], keep=1)
    cached.commit(20)
    logits = cached.forward(text[20:], keep=3)
    fresh = EagerRunner(target).forward(text, keep=3)
    torch.testing.assert_close(logits, fresh, rtol=1e-4, atol=1e-4)


def test_hidden_states_that_were_rolled_back_are_gone_and_the_rest_are_transformers_own(models):
    target = models[0]
    text = prompts(1)[0] * 3 + list(range(1, 12))
    cached = EagerRunner(target)
    cached.watch([-1])
    cached.forward(text[:9], keep=1)
    cached.commit(9)
    first = cached.hidden
    cached.forward([*text[9:12], 7, 7, 7], keep=4)
    cached.commit(12)
    with torch.inference_mode():
        fresh = target(torch.tensor([text[:12]]), output_hidden_states=True).hidden_states[-1][0]
    torch.testing.assert_close(torch.cat([first, cached.hidden]), fresh, rtol=1e-4, atol=1e-4)


def test_a_target_is_watched_only_while_a_drafter_asks_for_hidden_states(models):
    cached = EagerRunner(models[0])
    cached.watch([-1])
    cached.forward([1, 2, 3], keep=1)
    assert not models[0].base_model._forward_hooks


BRANCHES = [-1, 0, 1, 1, 0, -1, 5, 6]  # two branches after the text; the first forks at its first and second token


@pytest.mark.parametrize("path", [[0, 1, 3], [5, 6, 7], [0, 4], [0, 1], [5], []], ids=str)
def test_of_a_tree_each_branch_is_what_it_is_alone_and_leaves_the_cache_as_if_it_were(models, path):
    target = models[0]
    text = prompts(1)[0] * 3 + list(range(1, 12))
    draft = Draft([3, 9, 9, 4, 7, 8, 3, 9], [1.0] * 8, tree=BRANCHES)
    cached = EagerRunner(target)
    cached.watch([-1])
    cached.forward(text[:-2], keep=1)
    cached.commit(len(text) - 2)
    logits = cached.forward([*text[-2:], *draft.ids], keep=9, tree=BRANCHES)
    cached.commit(len(text), path)

    branch = [draft.ids[i] for i in path]
    alone = EagerRunner(target)
    alone.watch([-1])
    fresh = alone.forward([*text, *branch], keep=len(branch) + 1)
    torch.testing.assert_close(logits[[0, *(i + 1 for i in path)]], fresh, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cached.hidden, alone.hidden[len(text) - 2 :], rtol=1e-4, atol=1e-4)
    alone.commit(len(text) + len(branch))
    more = [1, 2, 3, 4, 5, 6, 7, 8]
    torch.testing.assert_close(cached.forward(more, 8), alone.forward(more, 8), rtol=1e-4, atol=1e-4)


def test_a_recurrent_model_takes_no_trees():
    config = MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1, state_size=4)
    assert not EagerRunner(MambaForCausalLM(config)).takes_trees
