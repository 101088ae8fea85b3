"""The target's first layers draft: against plain decoding and transformers' `assistant_early_exit`, in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from playground.decoding.drafters.assistant import EarlyExitDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.load import LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from tests.decoding.real import (
    FAMILIES,
    NewDrafter,
    V,
    generated,
    ids_of,
    leaves_no_state,
    prompts,
    rounds_of,
)

LAYERS, EXIT = 4, 2


def loaded(model) -> LoadedModel:
    return LoadedModel(model, SimpleNamespace(eos_token_id=V - 1), "big", "")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    """Its upper layers change little, so that some drafts are accepted."""
    model = FAMILIES[request.param](0, LAYERS)
    with torch.no_grad():
        for layer in model.get_decoder().layers[EXIT:]:
            for name, weight in layer.named_parameters():
                if name.endswith("proj.weight"):
                    weight.mul_(0.3)
    return model


def drafting(model, layers: int = EXIT) -> NewDrafter:
    first = first_layers(loaded(model), layers).model
    return lambda target: EarlyExitDrafter(first, target, {V - 1})


@pytest.mark.parametrize("layers", [1, 3])
def test_greedy_equals_generate_and_some_drafts_stand(model, layers):
    kept = 0
    for prompt in prompts(3):
        rounds = rounds_of(model, drafting(model, layers), prompt, max_new_tokens=24)
        assert ids_of(rounds) == generated(model, prompt, 24)
        kept += sum(len(round_.accepted) for round_ in rounds)
    assert kept > 5


def test_same_tokens_as_transformers_in_no_more_rounds(model, monkeypatch):
    options = dict(num_assistant_tokens=4, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)
    for key, value in options.items():
        monkeypatch.setattr(model.generation_config, key, value)
    passes = []
    forward = type(model).forward

    def counted(self, *args, **kwargs):
        passes.append(self.config.num_hidden_layers)
        return forward(self, *args, **kwargs)

    ours = theirs = 0
    for prompt in prompts(3):
        rounds = rounds_of(model, drafting(model), prompt)
        ours += len(rounds)
        with monkeypatch.context() as patch:
            patch.setattr(type(model), "forward", counted)
            passes.clear()
            same = generated(model, prompt, assistant_early_exit=EXIT)
        theirs += passes.count(LAYERS)
        assert same == ids_of(rounds)
    assert ours <= theirs


def test_what_was_drafted_before_leaves_no_state(model):
    text = [3, 1, 4, *ids_of(rounds_of(model, drafting(model), [3, 1, 4], ends=()))]
    leaves_no_state(model, drafting(model), text, [(4, 5), (4, 6), (4, 10), (4, 14)])


def test_the_drafter_reads_the_prompt_and_then_no_token_of_the_text_but_the_last(model, monkeypatch):
    fed = []
    forward = EagerRunner.forward

    def counted(self, ids, keep, tree=None):
        fed.append((len(self._cache.states.layers), len(ids)))
        return forward(self, ids, keep, tree)

    monkeypatch.setattr(EagerRunner, "forward", counted)
    rounds_of(model, drafting(model), list(range(1, 15)))
    first, *later = [count for layers, count in fed if layers == EXIT]
    assert first == 14
    assert {*later} == {1}


def test_a_recurrent_target_is_refused():
    config = MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4)
    target = loaded(MambaForCausalLM(config))
    pair = LoadedPair(custom_pair("big", None, early_exit=1), target, first_layers(target, 1))
    lane = Lane("x", "big", drafter="early-exit")
    with pytest.raises(PlaygroundError, match="recurrent layers"):
        build_drafter(pair, lane, EagerRunner(target.model))
