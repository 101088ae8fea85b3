from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from playground.errors import PlaygroundError
from playground.models import device, load
from playground.models.fetch import hub
from playground.models.load import LoadedModel
from playground.presets import custom_pair

CPU = torch.device("cpu")


def get(name: str | Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load.load(str(name), load.Format(dtype, CPU), lambda step: None)


def test_a_folder_loads(tiny_folder, tiny_llama):
    loaded = get(tiny_folder)
    assert (loaded.name, loaded.weights) == ("tiny", "folder tiny")
    assert not loaded.model.training
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded.model(ids).logits, tiny_llama(ids).logits)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("கடல் 🙂")) == "கடல் 🙂"


def test_the_dtype_asked_for_is_the_dtype_loaded(tiny_folder):
    assert get(tiny_folder, torch.bfloat16).model.dtype == torch.bfloat16


def test_loading_is_announced(tiny_folder):
    steps = []
    load.load(str(tiny_folder), load.Format(torch.float32, CPU), steps.append)
    assert [step.label for step in steps] == ["Loading tiny"]


@pytest.mark.parametrize("name", ["/no/such/folder", "./no/such/folder", "~/no-such-folder-here"])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(PlaygroundError, match="no folder"):
        get(name)


def test_the_home_of_a_user_who_is_not_here():
    pair = custom_pair("~nobody-of-that-name/x", "~nobody-of-that-name/y")
    assert pair.weights == {"assistant": "~nobody-of-that-name/y"}
    with pytest.raises(PlaygroundError, match="'~nobody-of-that-name/x' can"):
        get("~nobody-of-that-name/x")


def test_a_file_is_no_folder(tiny_folder):
    with pytest.raises(PlaygroundError, match="is a file"):
        get(tiny_folder / "model.safetensors")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(PlaygroundError, match="no model"):
        get(tmp_path)


def test_a_folder_with_two_ggufs(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(PlaygroundError, match=r"a\.gguf, b\.gguf"):
        get(tmp_path)


def test_a_gguf_beside_a_config_loads_as_gguf(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert load.locate(str(tmp_path), lambda step: None).gguf == "a.gguf"


def test_a_broken_gguf(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF but no more")
    with pytest.raises(load.Damaged):
        get(tmp_path)


def test_pickled_weights_are_refused(tiny_folder):
    (tiny_folder / "model.safetensors").rename(tiny_folder / "pytorch_model.bin")
    with pytest.raises(PlaygroundError, match="no safetensors"):
        get(tiny_folder)


def test_a_model_with_code_of_its_own_is_refused_and_its_code_not_run(tiny_folder, tmp_path):
    (tiny_folder / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    change(tiny_folder / "config.json", model_type="own", auto_map={"AutoConfig": "modeling_own.OwnConfig"})
    with pytest.raises(PlaygroundError, match="never run"):
        get(tiny_folder)
    assert not (tmp_path / "ran").exists()


def test_an_architecture_that_transformers_does_not_know(tiny_folder):
    change(tiny_folder / "config.json", model_type="unheard_of")
    with pytest.raises(load.Damaged, match="unheard_of"):
        get(tiny_folder)


def test_an_encoder_decoder_is_no_causal_model(tmp_path, tiny_tokenizer):
    sizes = dict.fromkeys(("d_model", "d_kv", "d_ff", "num_layers", "num_heads"), 2)
    T5ForConditionalGeneration(T5Config(vocab_size=300, **sizes)).save_pretrained(tmp_path / "t5")
    tiny_tokenizer.save_pretrained(tmp_path / "t5")
    with pytest.raises(PlaygroundError, match="causal language"):
        get(tmp_path / "t5")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_truncated_file(tiny_folder, name):
    path = tiny_folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(load.Damaged, match=r"^tiny "):
        get(tiny_folder)


def test_weights_that_lack_a_layer_are_refused(tiny_folder):
    change(tiny_folder / "config.json", num_hidden_layers=3)
    with pytest.raises(PlaygroundError, match=r"incomplete.*model\.layers\.2"):
        get(tiny_folder)


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_read(tiny_folder, monkeypatch):
    size = (tiny_folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(load, "free_bytes", lambda where: size * 3 // 4)
    with pytest.raises(PlaygroundError, match=r"tiny needs .* float32, .* cpu "):
        get(tiny_folder)
    assert get(tiny_folder, torch.bfloat16), "half the bytes fit"


def test_a_hub_id_is_fetched_from_the_hub(tiny_folder, monkeypatch):
    weights = load.ModelFiles(tiny_folder, "owner/tiny", "owner/tiny from the hub, revision 12345678")
    monkeypatch.setattr(hub, "fetch", lambda name, progress: weights)
    loaded = get("owner/tiny")
    assert (loaded.name, loaded.weights) == ("owner/tiny", weights.origin)


def test_devices():
    assert device.resolve_device("cpu") == CPU
    assert device.resolve_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("abacus", "cuda:99", "xpu"):
        with pytest.raises(PlaygroundError, match=name):
            device.resolve_device(name)


def test_dtypes():
    assert device.resolve_dtype("float32", CPU) == torch.float32
    with pytest.raises(PlaygroundError, match="int3"):
        device.resolve_dtype("int3", CPU)


@pytest.mark.parametrize(
    ("told", "dtype"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"neon": True, "bf16": True}, torch.bfloat16),
    ],
)
def test_a_cpu_computes_in_bfloat16_only_where_it_has_instructions_for_it(monkeypatch, told, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert device.resolve_dtype("auto", CPU) == dtype


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
