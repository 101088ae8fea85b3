"""Configs that ask for more than their weights hold, and files that are not what they say."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from playground.decoding.runners.cache import SequenceCache
from playground.errors import PlaygroundError
from playground.models.fetch.files import inspect
from playground.models.load import Format, load
from playground.models.sizing import within_files
from playground.models.store import ModelStore
from playground.presets import custom_pair

CPU = torch.device("cpu")
HOSTILE: list[dict[str, Any]] = [
    {"vocab_size": 2_000_000_000},
    {"hidden_size": 2**20, "num_attention_heads": 4},
    {"intermediate_size": 2**30},
    {"num_hidden_layers": 10_000_000},
    {"num_hidden_layers": 2000},
    {"num_hidden_layers": 10**30},
    {"head_dim": 2**28, "hidden_size": 0},
    {"num_attention_heads": 10**6, "num_key_value_heads": 10**6, "head_dim": 64},
    {"num_labels": 10**9},
    {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2000},
    {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_positions": 2**20},
]


def get(folder: Path) -> None:
    load(str(folder), Format(torch.float32, CPU), lambda step: None)


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("changes", HOSTILE)
def test_a_config_that_asks_for_more_than_its_weights_hold_is_refused_before_memory_is_taken(tiny_folder, changes):
    change(tiny_folder, **changes)
    largest = 0

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.device == CPU:
                largest = max(largest, out.untyped_storage().nbytes())
            return out

    with Watched(), pytest.raises(PlaygroundError):
        get(tiny_folder)
    assert largest < 10_000_000


@pytest.mark.parametrize(
    "config",
    [{"num_hidden_layers": -1}, {"sliding_window": "x"}, {"sliding_window": 2**63}, "[" * 100_000 + "]" * 100_000],
)
def test_a_config_of_which_nothing_can_be_made_is_refused_in_a_sentence(tiny_folder, config):
    if isinstance(config, str):
        (tiny_folder / "config.json").write_text(config)
    else:
        change(tiny_folder, **config)
    with pytest.raises(PlaygroundError, match=r"Error: .*\. (Fetch|Check)"):
        get(tiny_folder)
        SequenceCache.empty(AutoConfig.from_pretrained(tiny_folder))


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("generation_config.json", "eos_token_id", "x"),
        ("generation_config.json", "repetition_penalty", []),
        ("tokenizer_config.json", "model_max_length", {}),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_in_a_sentence(tiny_folder, file, key, value):
    path = tiny_folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(PlaygroundError, match=r"Error: .*\. (Fetch|Check)"):
        get(tiny_folder)


def test_the_sentence_says_what_does_not_belong_together(tiny_folder):
    change(tiny_folder, vocab_size=2_000_000_000)
    with pytest.raises(PlaygroundError, match="not belong"):
        get(tiny_folder)
    change(tiny_folder, num_hidden_layers=10_000_000)
    with pytest.raises(PlaygroundError, match="asks for 10,000,000 as num_hidden_layers"):
        get(tiny_folder)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 65) + b'{"a":{"dtype":"F32","shape":[9999999],"data_offsets":[0,39999996]}}',
    ],
)
def test_files_that_are_not_what_they_say_are_refused(tiny_folder, start):
    (tiny_folder / "model.safetensors").write_bytes(start)
    with pytest.raises(PlaygroundError):
        get(tiny_folder)


def test_what_one_thread_builds_does_not_count_for_another(tiny_folder, tiny_llama):
    weights = inspect(tiny_folder, "tiny", "folder tiny")
    with within_files(weights), torch.device("meta"):
        AutoModelForCausalLM.from_config(tiny_llama.config)
        with pytest.raises(PlaygroundError, match="tensors"):
            torch.nn.ModuleList(torch.nn.LayerNorm(1) for _ in range(5000))
    torch.nn.ModuleList(torch.nn.LayerNorm(1) for _ in range(5000))


@pytest.mark.slow
def test_a_series_of_hostile_folders_leaves_the_memory_as_it_was(tiny_folder):
    store, process = ModelStore(), psutil.Process()
    whole = (tiny_folder / "config.json").read_text()

    def refuse_all() -> int:
        for changes in HOSTILE:
            (tiny_folder / "config.json").write_text(whole)
            change(tiny_folder, **changes)
            with pytest.raises(PlaygroundError):
                store.get(custom_pair(str(tiny_folder), None), drafter="ngram", progress=lambda step: None)
        return process.memory_info().rss

    first = refuse_all()
    assert max(refuse_all() for _ in range(2)) - first < 50e6


def test_a_model_that_is_refused_leaves_no_tensor_behind(tiny_folder):
    path, store = tiny_folder / "model.safetensors", ModelStore()
    tensors = load_file(path)
    name = next(it for it in tensors if it.endswith("down_proj.weight"))
    save_file({it: tensor for it, tensor in tensors.items() if it != name}, path, {"format": "pt"})
    del tensors

    def held() -> int:
        gc.collect()
        return sum(issubclass(type(it), torch.Tensor) for it in gc.get_objects())

    before = held()
    for _ in range(3):
        with pytest.raises(PlaygroundError, match="down_proj"):
            store.get(custom_pair(str(tiny_folder), None), drafter="ngram", progress=lambda step: None)
    assert held() == before and store.current is None
