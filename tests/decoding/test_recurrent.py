"""Recurrent states, which transformers does not roll back, on one of its real classes in float32."""

from __future__ import annotations

import pytest
import torch

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.runners.eager import EagerRunner
from tests.decoding.fakes import ScriptedDrafter
from tests.decoding.real import V, generated, ids_of, llama, prompts, rounds_of
from tests.decoding.test_transformers_models import run
from tests.native import qwen


@pytest.fixture(scope="module")
def model():
    """A Qwen 3.5: a Gated DeltaNet layer and one of full attention."""
    torch.manual_seed(0)
    model = qwen(2).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    return model


@pytest.mark.parametrize("first", [1, 9])
def test_rolled_back_caches_give_the_logits_of_a_fresh_pass(model, first):
    text = prompts(1)[0] * 3 + list(range(1, 12))
    cached = EagerRunner(model)
    cached.watch([-1])
    cached.forward([*text[:first], 7, 7], keep=3)  # a draft before the first pass
    cached.commit(first)
    cached.forward([*text[first : first + 2], 7, 7, 7], keep=4)
    cached.commit(first + 2)
    cached.forward([text[first + 2]], keep=1)
    cached.forward([7], keep=1)
    cached.commit(first + 3)
    hidden = []
    for start, kept in ((first + 3, 1), (first + 4, 4)):
        cached.forward([*text[start : start + kept], 5], keep=1)
        cached.commit(start + kept)
        hidden.append(cached.hidden)
    end = first + 8
    logits = cached.forward(text[end:], keep=3)
    alone = EagerRunner(model)
    alone.watch([-1])
    torch.testing.assert_close(logits, alone.forward(text, keep=3), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat(hidden), alone.hidden[end - 5 : end], rtol=1e-4, atol=1e-4)


def test_the_states_count_as_held_memory(model):
    cached = EagerRunner(model)
    cached.forward([1, 2, 3], keep=1)
    recurrent, full = cached._cache.states.layers
    states = [*recurrent.conv_states.values(), *recurrent.recurrent_states.values(), full.keys, full.values]
    assert cached.cache_bytes == sum(state.untyped_storage().nbytes() for state in states) > 0


@pytest.mark.parametrize("drafter", ["ngram", "assistant"])
def test_greedy_equals_generate_token_for_token(model, drafter):
    for prompt in prompts(5):
        assert ids_of(run((model, model), drafter, prompt)) == generated(model, prompt)


class Fed:
    """`passes`: the number of tokens of each forward pass of a model, while the context lasts."""

    def __init__(self, model) -> None:
        self.passes: list[int] = []
        self._hook = model.register_forward_pre_hook(
            lambda module, args, kwargs: self.passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )

    def __enter__(self) -> Fed:
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()


PROMPT = list(range(1, 31))


def wrong(ids, k):
    """No greedy text of this model repeats a token so."""
    return [ids[0]] * k


def test_every_pass_is_counted_and_the_prompt_is_fed_once(model):
    with Fed(model) as fed:
        rounds = rounds_of(model, lambda target: ScriptedDrafter(wrong), PROMPT, max_new_tokens=8)
    assert ids_of(rounds) == generated(model, PROMPT, max_new_tokens=8)
    assert sum(round_.passes for round_ in rounds) == len(fed.passes) > len(rounds)
    assert [tokens for tokens in fed.passes if tokens >= len(PROMPT)] == [len(PROMPT)]
    assert not rounds[0].drafted and rounds[0].passes == 1
    assert {round_.passes for round_ in rounds[1:-1]} == {2}, "each rejection costs one more pass"


def test_a_recurrent_assistant_is_fed_the_prompt_once(model):
    assistant = qwen(2).eval()
    with Fed(assistant) as fed:
        rounds = rounds_of(llama(0, 2), lambda target: AssistantDrafter(EagerRunner(assistant), V, {V - 1}), PROMPT)
    assert any(token.decision == "rejected" for token in rounds[0].drafted)
    assert [tokens for tokens in fed.passes if tokens >= len(PROMPT)] == [len(PROMPT)]
