"""Loading Gemma 4 assistants, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Gemma4TextConfig

from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.load import LoadedModel
from playground.models.networks.gemma4 import load_gemma4
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.fakes import GREEDY
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_tokenizer) -> Path:
    """Folders target and target-assistant, as `save_pretrained` writes them; the second has no tokenizer."""
    root = tmp_path_factory.mktemp("gemma4")
    target = gemma4_target("whole", len(tiny_tokenizer))
    target.save_pretrained(root / "target")
    tiny_tokenizer.save_pretrained(root / "target")
    gemma4_assistant(target, ordered=True).save_pretrained(root / "target-assistant")
    return root


def pair_of(folders: Path):
    return custom_pair(str(folders / "target"), str(folders / "target-assistant"))


def get(folders: Path):
    return ModelStore().get(
        pair_of(folders), drafter="gemma4", dtype="float32", device="cpu", progress=lambda step: None
    )


def test_a_folder_is_recognised_loads_and_drafts(folders):
    pair = pair_of(folders)
    assert (pair.weights["gemma4"], pair.drafter) == (str(folders / "target-assistant"), "gemma4")
    assert {"gemma4", "tree", "composite"} <= set(pair.drafters)
    models = get(folders)
    assert (models.drafting.name, models.drafting.weights) == ("target-assistant", "folder target-assistant")
    buffers = models.drafting.network.named_buffers()
    (ordering,) = (buffer for name, buffer in buffers if name.endswith("token_ordering"))
    assert sorted(ordering.tolist()) == list(range(len(ordering)))
    for way, kind in (("gemma4", ChainDrafter), ("tree", TreeDrafter)):
        target = EagerRunner(models.target.model)
        lane = Lane("drafted", "target", way)
        drafter = build_drafter(models, lane, target)
        assert isinstance(drafter, kind)
        target.forward([1, 2, 3], keep=1)
        target.commit(3)
        drafter.commit(3)
        assert drafter.propose([1, 2, 3, 4], 4, 0.0, GREEDY).ids


def refused(target: LoadedModel, folder: Path, match: str) -> None:
    with pytest.raises(PlaygroundError, match=match):
        load_gemma4(str(folder), target, lambda step: None)


@pytest.fixture(scope="module")
def target(folders) -> LoadedModel:
    return get(folders).target


def test_a_target_that_is_no_gemma_4_is_refused(tiny_llama, tiny_tokenizer, folders):
    llama = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "folder tiny")
    refused(llama, folders / "target-assistant", "tiny is not a Gemma 4 model.*Choose a Gemma 4 target")


def test_a_model_that_is_no_assistant_is_refused(target, tiny_folder):
    refused(target, tiny_folder, "tiny is not a Gemma 4 assistant: its config says llama")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"backbone_hidden_size": 64}, "hidden states of 64, and this one has 32"),
        ({"text_config": {"vocab_size": 40}}, "a vocabulary of 40"),
        ({"text_config": {"sliding_window": 5}}, "a sliding window of 5"),
        ({"text_config": {"num_key_value_heads": 4}}, "key-value heads"),
    ],
    ids=str,
)
def test_an_assistant_of_another_target_is_refused_before_its_weights_are_read(
    target, folders, tmp_path, changes, match
):
    config = json.loads((folders / "target-assistant" / "config.json").read_text())
    config["text_config"] |= changes.pop("text_config", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | changes))
    (tmp_path / "other" / "model.safetensors").write_bytes(b"never read")
    refused(
        target, tmp_path / "other", f"other cannot draft for target: .*{match}.*Choose the assistant made for target"
    )


def test_a_transformers_that_cannot_build_one_is_named(target, folders, monkeypatch):
    def broken(self):
        raise ValueError("what 5.23.0 says")

    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(broken), raising=False)
    refused(target, folders / "target-assistant", "cannot build target-assistant. Install 5.22.2")


def test_broken_weights_are_told(target, folders, tmp_path):
    (tmp_path / "broken").mkdir()
    for name in ("config.json", "model.safetensors"):
        whole = (folders / "target-assistant" / name).read_bytes()
        (tmp_path / "broken" / name).write_bytes(whole if name == "config.json" else whole[:100])
    refused(target, tmp_path / "broken", "broken cannot be loaded")


@pytest.mark.usefixtures("torch_computes")
def test_the_assistant_takes_the_targets_dtype(folders):
    models = ModelStore().get(
        pair_of(folders), drafter="gemma4", dtype="bfloat16", device="cpu", progress=lambda step: None
    )
    assert models.drafting.network.model.dtype == models.target.model.dtype == torch.bfloat16
