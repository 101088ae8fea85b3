"""int8 and int4 weights through bitsandbytes."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig

from playground.errors import PlaygroundError
from playground.models import load, quantised
from playground.models.device import resolve_dtype
from playground.models.networks.mtp import load_native
from playground.models.quantised import precision
from playground.models.sizing import weights_bytes
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.quantised import llama
from tests.quantised import quantised as read_back

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, tiny_tokenizer):
    llama().save_pretrained(tmp_path / "tiny")
    tiny_tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def get(folder, bits: int | None, dtype: torch.dtype = torch.float32):
    return load.load(str(folder), load.Format(dtype, CPU, bits), lambda step: None)


def change(path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_embedding_and_head_stay_whole_and_all_other_linear_layers_do_not(tmp_path, bits, tied):
    whole = llama(tie_word_embeddings=tied)
    model = read_back(whole, tmp_path, bits)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, module in linear.items() if type(module) is nn.Linear} == {"lm_head"}
    assert len(linear) == 15
    for ours, theirs in (
        (model.get_output_embeddings(), whole.get_output_embeddings()),
        (model.get_input_embeddings(), whole.get_input_embeddings()),
    ):
        assert torch.equal(ours.weight, theirs.weight)
    assert model.dtype == torch.float32


@pytest.mark.parametrize("bits", [8, 4])
def test_a_tokens_logits_do_not_depend_on_the_tokens_beside_it(tmp_path, bits):
    """int8 by its defaults does not have this: its columns in full precision are chosen over all tokens of a pass."""
    model = read_back(llama(), tmp_path, bits)
    ids = torch.randint(0, 40, (1, 12), generator=torch.Generator().manual_seed(0))
    beside = torch.cat([ids, ids.flip(1)])
    with torch.inference_mode():
        torch.testing.assert_close(model(beside).logits[:1], model(ids).logits, rtol=1e-4, atol=1e-4)
        prefixes = [model(ids[:, :n]).logits[0, -1] for n in range(1, 13)]
        torch.testing.assert_close(torch.stack(prefixes), model(ids).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_memory_told_beforehand_is_the_memory_held(folder, bits):
    told = load._bytes_in(folder / "model.safetensors", torch.float32, bits)
    assert told == pytest.approx(weights_bytes(get(folder, bits).model), rel=0.05)
    assert told < 0.6 * load._bytes_in(folder / "model.safetensors", torch.float32, None)


def test_a_model_that_fits_in_int4_only(folder, monkeypatch):
    free = 1.2 * load._bytes_in(folder / "model.safetensors", torch.float32, 4)
    monkeypatch.setattr(load, "free_bytes", lambda device: free)
    assert get(folder, 4)
    with pytest.raises(PlaygroundError, match="in float32"):
        get(folder, None)
    monkeypatch.setattr(load, "free_bytes", lambda device: free / 2)
    with pytest.raises(PlaygroundError, match="in int4"):
        get(folder, 4)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_name_of_a_dtype_reaches_target_assistant_and_trace(folder, name):
    pair = custom_pair(str(folder), str(folder))
    models = ModelStore().get(pair, drafter="assistant", dtype=name, device="cpu", progress=lambda step: None)
    assert models.drafting is models.target
    computed_in = models.target.model.dtype
    assert computed_in == resolve_dtype(name, CPU) == resolve_dtype("auto", CPU)
    expected = f"{name} weights, {str(computed_in).removeprefix('torch.')}"
    assert precision(models.target.model) == expected


@pytest.mark.parametrize("bits", [8, 4])
def test_a_checkpoint_that_is_quantised_already_loads_as_it_is(folder, tmp_path, tiny_tokenizer, bits):
    how = BitsAndBytesConfig(load_in_8bit=True) if bits == 8 else BitsAndBytesConfig(load_in_4bit=True)
    made = type(llama()).from_pretrained(folder, quantization_config=how, dtype=torch.float32, device_map=CPU)
    made.save_pretrained(tmp_path / "q")
    tiny_tokenizer.save_pretrained(tmp_path / "q")
    loaded = get(tmp_path / "q", None)
    assert precision(loaded.model) == f"int{bits} weights, float32"
    assert {m.state.threshold for m in loaded.model.modules() if hasattr(m, "state")} <= {0.0}
    with pytest.raises(PlaygroundError, match="quantised already"):
        get(tmp_path / "q", 8)


def test_a_checkpoint_whose_library_is_not_here(folder):
    change(folder / "config.json", quantization_config={"quant_method": "hqq", "quant_config": {}})
    with pytest.raises(PlaygroundError, match=r"a library .*[Hh][Qq][Qq]"):
        get(folder, None)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "modelopt"),
        ({"quantization_config": {"quant_method": "exl3", "bits": 4.0}}, "exl3"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "MLX"),
        ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}}, "MLX"),
        ({"text_config": {"quantization_config": {"quant_method": "of next year"}}}, "of next year"),
        ({"quantization_config": {"bits": 3}}, "a method .* config.json .*"),
    ],
    ids=str,
)
def test_a_quantisation_that_transformers_cannot_read_is_named(folder, config, method):
    """It would load the numbers without their scales."""
    change(folder / "config.json", **config)
    with pytest.raises(PlaygroundError, match=f"quantised by {method}, .* original weights"):
        get(folder, None)


def test_a_quantisation_named_in_a_file_of_its_own_and_one_that_fails_here(folder):
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(PlaygroundError, match="by modelopt, "):
        get(folder, None)
    change(folder / "config.json", quantization_config={"quant_method": "higgs"})
    with pytest.raises(PlaygroundError, match=r"by higgs\. .* original"):
        get(folder, None)
    (folder / "hf_quant_config.json").unlink()
    change(folder / "config.json", quantization_config=None)
    assert get(folder, None)


def test_without_bitsandbytes_it_is_asked_for(folder, monkeypatch):
    monkeypatch.setattr(quantised, "is_bitsandbytes_available", lambda: False)
    with pytest.raises(PlaygroundError, match=r"playground\[gpu\]"):
        get(folder, 8)
    assert get(folder, None)


def test_what_cannot_be_quantised_is_refused(folder, tmp_path):
    change(folder / "config.json", kv_lora_rank=8)
    with pytest.raises(PlaygroundError, match="latent attention"):
        get(folder, 8)
    weights = load.ModelFiles(folder, "g", "folder g", gguf="a.gguf")
    with pytest.raises(PlaygroundError, match="GGUF"):
        load.read(weights, load.Format(torch.float32, CPU, 4))


def test_layers_of_the_targets_own_are_not_read(folder):
    target = get(folder, 4)
    target.model.config.num_nextn_predict_layers = 1
    with pytest.raises(PlaygroundError, match="is quantised"):
        load_native("native", target, lambda step: None)


def test_nothing_is_said_in_every_pass(folder, caplog):
    model = get(folder, 8).model
    with caplog.at_level(logging.WARNING), torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]))
    assert not caplog.records
