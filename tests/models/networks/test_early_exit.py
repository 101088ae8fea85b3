from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from playground.errors import PlaygroundError
from playground.models.load import LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.store import ModelStore
from playground.presets import custom_pair

SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2)


def loaded(model) -> LoadedModel:
    return LoadedModel(model, SimpleNamespace(eos_token_id=0), "big", "")


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return loaded(Qwen2ForCausalLM(Qwen2Config(**SIZES, num_hidden_layers=4)).eval())


def test_the_weights_are_the_targets_own_and_the_target_is_as_it_was(target):
    model = target.model
    before = dict(model.named_modules())
    shallow = first_layers(target, 2).model
    ours = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    theirs = {name: weight.data_ptr() for name, weight in shallow.named_parameters()}
    assert theirs.items() < ours.items()
    assert dict(model.named_modules()) == before
    assert len(model.get_decoder().layers) == model.config.num_hidden_layers == 4
    assert len(shallow.get_decoder().layers) == 2


@pytest.mark.parametrize("layers", [-1, 0, 4, 99])
def test_an_exit_that_is_not_there_is_refused(target, layers):
    with pytest.raises(PlaygroundError, match=r"4 layers.* 1 to 3"):
        first_layers(target, layers)


def test_a_model_without_layers_that_can_be_told_apart_is_refused():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=8, n_layer=2, n_head=2))
    with pytest.raises(PlaygroundError, match="GPT2LMHeadModel"):
        first_layers(loaded(model), 1)


def get(folder, layers: int):
    pair = custom_pair(str(folder), None, "early-exit", early_exit=layers)
    return ModelStore().get(pair, drafter="early-exit", dtype="float32", device="cpu", progress=lambda step: None)


def test_a_typed_target_drafts_with_its_own_layers(tiny_folder):
    pair = get(tiny_folder, 1)
    assert len(pair.drafting.model.model.layers) == 1 and "first 1" in pair.drafting.weights
    assert pair.drafting.model.lm_head is pair.target.model.lm_head


def test_a_typed_exit_that_is_not_there_is_refused(tiny_folder):
    with pytest.raises(PlaygroundError, match=r"2 layers.* 1 to 1"):
        get(tiny_folder, 2)
