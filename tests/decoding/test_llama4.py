"""Llama 4: chunked attention, and a decoder that transformers' `get_decoder` does not find."""

from __future__ import annotations

import pytest
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

from playground.decoding.drafters.assistant import AssistantDrafter, EarlyExitDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.attention import decoder_of
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.real import ENDS, SIZES, V, generated, ids_of, llama, over, prompts, rounds_of

CHUNK = 6  # far shorter than the texts here


@pytest.fixture(scope="module")
def target():
    """Three chunked layers and one that attends to everything, without positions, by a scale that grows."""
    torch.manual_seed(0)
    config = Llama4TextConfig(
        **SIZES,
        **ENDS,
        head_dim=8,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        attention_chunk_size=CHUNK,
        floor_scale=5,
        initializer_range=0.4,
    )
    assert config.layer_types == ["chunked_attention"] * 3 + ["full_attention"]
    return Llama4ForCausalLM(config).eval()


def loaded(model) -> LoadedModel:
    tokenizer = NumberTokenizer()
    tokenizer.eos_token_id = V - 1
    return LoadedModel(model, tokenizer, "big", "made here")


def heads(target) -> ParallelHeads:
    return ParallelHeads(target, torch.arange(V), 2).eval()


def mtp(target) -> MtpLayer:
    layer = MtpLayer(target, torch.arange(V)).eval()
    layer.start_from(target)
    return layer


DRAFTERS = {
    "none": lambda target: lambda runner: NoDrafter(),
    "ngram": lambda target: lambda runner: NgramDrafter(),
    "assistant": lambda target: lambda runner: AssistantDrafter(EagerRunner(llama(1, 1)), V, {V - 1}),
    "itself": lambda target: lambda runner: AssistantDrafter(EagerRunner(target), V, {V - 1}),
    "heads": lambda target: over(heads(target)),
    "mtp": lambda target: over(mtp(target)),
    "early exit": lambda target: (
        lambda runner: EarlyExitDrafter(first_layers(loaded(target), 2).model, runner, {V - 1})
    ),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_equals_generate(target, drafter):
    new_drafter = DRAFTERS[drafter](target)
    for prompt in prompts(3):
        assert ids_of(rounds_of(target, new_drafter, prompt)) == generated(target, prompt)


def test_a_target_that_drafts_for_itself_is_always_accepted(target):
    rounds = rounds_of(target, DRAFTERS["itself"](target), [3, 1, 4], max_new_tokens=30)
    assert {token.decision for round_ in rounds for token in round_.drafted} == {"accepted"}


def test_hidden_states_are_those_of_the_decoder(target):
    assert decoder_of(target) is target.model
    runner = EagerRunner(target)
    runner.watch([0, -1])
    runner.forward([1, 2, 3], keep=1)
    with torch.inference_mode():
        states = target(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(runner.hidden, torch.cat([states[1][0], states[-1][0]], dim=-1))


def test_trees_are_refused_in_words(target):
    network = LoadedDrafter(heads(target), "heads", "made here")
    models, lane = LoadedPair(None, loaded(target), network), Lane("tree", "big", "tree")
    with pytest.raises(PlaygroundError, match="chunked attention"):
        build_drafter(models, lane, EagerRunner(target))
