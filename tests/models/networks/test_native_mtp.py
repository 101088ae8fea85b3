from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from playground.errors import PlaygroundError
from playground.models.load import Format, load
from playground.models.networks.mtp import NativeLayer, load_native
from playground.models.store import ModelStore
from playground.presets import NATIVE, custom_pair
from tests.native import native_places, save_native  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("native_places")


def native_of(folder):
    target = load(str(folder), Format(torch.float32, torch.device("cpu")), lambda step: None)
    return target, load_native(NATIVE, target, lambda step: None)


def without(folder, part: str) -> None:
    state = load_file(folder / "model.safetensors")
    save_file(
        {key: tensor for key, tensor in state.items() if part not in key},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


@pytest.mark.parametrize("way", ["mtp", "tree", "composite"])
def test_a_typed_target_drafts_with_its_own_layers_and_they_are_read_once(tmp_path, tiny_tokenizer, way, monkeypatch):
    folder, reads = save_native("glm", 1, tmp_path / "tiny", tiny_tokenizer), []
    from_pretrained = MtpModel.from_pretrained
    monkeypatch.setattr(
        MtpModel, "from_pretrained", lambda *args, **options: reads.append(1) or from_pretrained(*args, **options)
    )
    pair, models = custom_pair(str(folder), None, way), ModelStore()
    first, second = (
        models.get(pair, drafter=way, dtype="float32", device="cpu", progress=lambda step: None) for _ in range(2)
    )
    assert pair.weights == {"mtp": NATIVE}
    assert second.drafting is first.drafting and len(reads) == 1
    assert first.drafting.name == "tiny's own MTP"
    assert first.drafting.network.mtp.embed_tokens is first.target.model.get_input_embeddings()


def test_a_checkpoint_with_images_too_as_qwen_publishes_it(tmp_path, tiny_tokenizer):
    folder = save_native("qwen", 1, tmp_path / "tiny", tiny_tokenizer)
    state = load_file(folder / "model.safetensors")
    state = {key.replace("model.", "model.language_model."): tensor for key, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "qwen3_5", "text_config": json.loads((folder / "config.json").read_text())}
    (folder / "config.json").write_text(json.dumps(config))
    _, drafter = native_of(folder)
    assert isinstance(drafter.network, NativeLayer)
    assert torch.equal(drafter.network.mtp.layers[0].eh_proj.weight, state["mtp.fc.weight"])


def test_a_target_whose_config_names_no_layers_is_refused(tiny_folder):
    with pytest.raises(PlaygroundError, match="no MTP"):
        native_of(tiny_folder)


@pytest.mark.parametrize("part", ["layers.2.", "eh_proj", "mlp.experts.1.up_proj"])
def test_a_checkpoint_without_the_weights_that_its_config_names_is_refused(tmp_path, tiny_tokenizer, part):
    folder = save_native("deepseek", 1, tmp_path / "tiny", tiny_tokenizer)
    without(folder, f"layers.2.{part}" if part != "layers.2." else part)
    with pytest.raises(PlaygroundError, match="transformers cannot"):
        native_of(folder)


def test_a_quantised_target_is_refused(tmp_path, tiny_tokenizer):
    folder = save_native("deepseek", 1, tmp_path / "tiny", tiny_tokenizer)
    target, _ = native_of(folder)
    target.model.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(PlaygroundError, match="is quantised"):
        load_native(NATIVE, target, lambda step: None)
