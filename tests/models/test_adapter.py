"""A LoRA adapter, as peft saves it, merged into a model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from playground.errors import PlaygroundError
from playground.models import load
from playground.models.load import merge
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.tiny import small_llama

AT = "model.layers.0.self_attn.q_proj"


def write_adapter(folder: Path, *, rank: int = 2, name: str = AT, wide: int = 32, more=(), **config: object) -> Path:
    """Random; the keys and the config are peft's."""
    folder.mkdir()
    torch.manual_seed(1)
    tensors = {
        f"base_model.model.{name}.lora_A.weight": torch.randn(rank, wide),
        f"base_model.model.{name}.lora_B.weight": torch.randn(wide, rank),
    }
    save_file(tensors | dict(more), folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": [name], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


@pytest.mark.parametrize(
    ("config", "scale"), [({}, 6 / 2), ({"use_rslora": True}, 6 / math.sqrt(2)), ({"alpha_pattern": {AT: 8}}, 8 / 2)]
)
def test_a_merged_layer_gives_what_layer_and_adapter_give_together(tiny_tokenizer, tmp_path, config, scale):
    model, folder = small_llama(tiny_tokenizer), write_adapter(tmp_path / "lora", **config)
    before, x = model.get_submodule(AT), torch.randn(3, 32)
    a, b = (tensor for _, tensor in sorted(load_file(folder / "adapter_model.safetensors").items()))
    wanted = before(x) + scale * (x @ a.T) @ b.T
    merge(model, str(folder))
    assert torch.allclose(model.get_submodule(AT)(x), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (dict(more={"base_model.model.model.norm.lora_A.weight": torch.zeros(2)}), "made for another model: .*norm"),
        (dict(name="model.layers.7.self_attn.q_proj"), "cannot be put on llama: .*made for another model"),
        (dict(target_modules=["q_proj", "v_proj"]), "made for another model: .*v_proj"),
        (dict(wide=16), "cannot be put on llama: .*made for another model"),
        (dict(r=None), "cannot be put on llama"),
        (dict(peft_type="NONE"), "cannot be put on llama"),
        (dict(peft_type="PROMPT_TUNING", num_virtual_tokens=3), "cannot be"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_a_sentence(tiny_tokenizer, tmp_path, how, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        merge(small_llama(tiny_tokenizer), str(write_adapter(tmp_path / "lora", **how)))


def test_a_folder_without_an_adapter_is_a_sentence(tiny_tokenizer, tmp_path):
    with pytest.raises(PlaygroundError, match="adapter_config"):
        merge(small_llama(tiny_tokenizer), str(tmp_path / "nothing"))


def test_the_store_keeps_a_target_with_and_without_its_adapter(tiny_folder, tmp_path):
    store, pair = ModelStore(), custom_pair(str(tiny_folder), None)
    adapted = replace(pair, adapter=str(write_adapter(tmp_path / "lora")))
    plain, merged, again = (
        store.get(it, drafter="ngram", dtype="float32", progress=lambda step: None).target
        for it in (pair, adapted, pair)
    )
    assert plain is again and plain is not merged
    assert "adapter lora" in merged.weights
    ids = torch.tensor([[5, 6, 7]])
    assert not torch.allclose(plain.model(ids).logits, merged.model(ids).logits, atol=1e-3)


def test_without_peft_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(PlaygroundError, match=r"playground\[adapters\]"):
        merge(None, "anything")
