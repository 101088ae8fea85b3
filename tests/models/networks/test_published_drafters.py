"""DFlash drafters and Medusa heads from folders in their published formats, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.load import LoadedModel
from playground.models.networks.dflash import load_dflash
from playground.models.networks.heads import load_medusa
from playground.models.store import ModelStore
from playground.presets import custom_pair, kind_of
from tests.models.networks.blocks import write_block
from tests.published import BLOCK, dflash_base, medusa_folder, medusa_heads, zlab_folder
from tests.tiny import small_llama


@pytest.fixture
def target(tiny_tokenizer: PreTrainedTokenizerFast) -> LoadedModel:
    """Two layers, so that DFlash reads the first and, after the final norm, the last."""
    return LoadedModel(small_llama(tiny_tokenizer), tiny_tokenizer, "tiny", "here")


def dflash(name: str, target: LoadedModel):
    return load_dflash(name, target, lambda step: None)


def medusa(name: str, target: LoadedModel):
    return load_medusa(name, target, lambda step: None)


def test_zlabs_drafter_is_the_network_of_transformers_under_other_names(tmp_path, target):
    base = dflash_base(target.model, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    base.save_pretrained(tmp_path / "theirs")
    networks = [
        dflash(name, target).network
        for name in (zlab_folder(tmp_path / "zlab", target.model, base), str(tmp_path / "theirs"))
    ]
    hidden = torch.randn(6, 2 * 32)
    with torch.inference_mode():
        one, other = (network(7, hidden, network.new_cache()) for network in networks)
    assert one.shape == (BLOCK - 1, target.model.config.vocab_size)
    torch.testing.assert_close(one, other)
    assert networks[0].layers == [0, -1]


def test_layers_with_a_window_are_causal_where_zlab_has_them_so(tmp_path, target):
    windows = dict(layer_types=["sliding_attention", "full_attention"])
    base = dflash_base(target.model, **windows, sliding_window=4)
    base.save_pretrained(tmp_path / "theirs")
    folders = {
        "theirs": str(tmp_path / "theirs"),
        "zlab": zlab_folder(tmp_path / "zlab", target.model, base, sliding_window=4),
        "both ways": zlab_folder(tmp_path / "both", target.model, base, sliding_window=4, is_causal=False),
    }
    hidden = torch.randn(6, 2 * 32)
    networks = {name: dflash(folder, target).network for name, folder in folders.items()}
    with torch.inference_mode():
        logits = {name: network(7, hidden, network.new_cache()) for name, network in networks.items()}
    torch.testing.assert_close(logits["both ways"], logits["theirs"])
    assert (logits["zlab"] - logits["theirs"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 64}, "hidden states of 64, and this one has 32"),
        ({"vocab_size": 1234}, "a vocabulary of 1,234, and this one"),
        ({"num_target_layers": 36}, "36 layers, and this one has 2"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 7]}},
            "layer 7, counted from 0, and the target has 2",
        ),
        ({"dflash_config": {"mask_token_id": 999, "target_layer_ids": [0, 1]}}, "the mask token 999"),
        ({"dflash_config": {"target_layer_ids": [0, 1]}}, "lacks target_layer_ids or mask_token_id"),
        ({"architectures": ["DFlash2DraftModel"]}, "names DFlash2DraftModel"),
        ({"architectures": ["LlamaForCausalLM"]}, "names LlamaForCausalLM"),
        ({"intermediate_size": 64}, "cannot be loaded"),
        ({"hidden_size": "wide"}, "hidden states of wide"),
        ({"num_hidden_layers": 3, "layer_types": None}, "tensors more, such as layers.2"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 1], "projector_type": "domino"}},
            "Choose the drafter domino",
        ),
    ],
    ids=str,
)
def test_a_dflash_drafter_for_another_target_is_refused(tmp_path, target, changes, reason):
    folder = zlab_folder(tmp_path / "x", target.model, dflash_base(target.model), **changes)
    with pytest.raises(PlaygroundError) as refusal:
        dflash(folder, target)
    assert reason in str(refusal.value)


def test_heads_with_matrices_of_their_own_and_with_the_targets_are_loaded(tmp_path, target):
    hidden = torch.randn(32)
    for name, own, blocks in (("own", True, 1), ("shared", False, 1), ("deep", True, 2), ("flat", True, 0)):
        heads = medusa_heads(target.model, own, blocks)
        loaded = medusa(medusa_folder(tmp_path / name, heads, blocks), target)
        with torch.inference_mode():
            torch.testing.assert_close(loaded.network(hidden), heads(hidden))
        assert (loaded.name, loaded.weights) == (name, f"folder {name}")
        assert loaded.network(hidden).shape == (3, target.model.config.vocab_size)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"medusa_num_heads": 5}, "not 5 heads"),
        ({"medusa_num_heads": 2}, "not 2 heads"),
        ({"medusa_num_layers": None}, "and medusa_num_layers"),
    ],
    ids=str,
)
def test_heads_that_are_not_what_their_config_says_are_refused(tmp_path, target, changes, reason):
    folder = medusa_folder(tmp_path / "x", medusa_heads(target.model), **changes)
    with pytest.raises(PlaygroundError) as refusal:
        medusa(folder, target)
    assert reason in str(refusal.value)


def test_heads_for_another_target_are_refused(tmp_path, target, tiny_tokenizer):
    narrow, other_words = (small_llama(tiny_tokenizer) for _ in range(2))
    narrow.config.hidden_size = 16
    other_words.config.vocab_size = 77
    for model, reason in ((narrow, "states of 16"), (other_words, "vocabulary of 77")):
        folder = medusa_folder(tmp_path / reason, medusa_heads(model))
        with pytest.raises(PlaygroundError, match=reason):
            medusa(folder, target)


@pytest.mark.parametrize("load", [dflash, medusa])
def test_pickles_gguf_and_broken_files_are_refused(tmp_path: Path, target, load):
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 1}))
    torch.save({}, tmp_path / "pickled" / "medusa_lm_head.pt")
    with pytest.raises(PlaygroundError, match="unpickling"):
        load(str(tmp_path / "pickled"), target)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(PlaygroundError, match="is GGUF"):
        load(str(tmp_path / "gguf"), target)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.safetensors").write_bytes(b"")
    (tmp_path / "broken" / "config.json").write_text("[1]")
    with pytest.raises(PlaygroundError, match=r"config\.json of broken"):
        load(str(tmp_path / "broken"), target)


def test_weights_that_are_cut_short_are_refused(tmp_path, target):
    folders = [
        (dflash, zlab_folder(tmp_path / "d", target.model, dflash_base(target.model)), "model.safetensors"),
        (medusa, medusa_folder(tmp_path / "m", medusa_heads(target.model)), "medusa_lm_head.safetensors"),
    ]
    for load, folder, name in folders:
        path = Path(folder) / name
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(PlaygroundError, match=r"is broken|be loaded"):
            load(folder, target)


@pytest.mark.parametrize("way", ["dflash", "medusa", "dspark", "dflash2"])
def test_a_typed_folder_is_known_by_its_config_and_drafts_in_a_chain_or_a_tree(tmp_path, tiny_folder, target, way):
    if way == "dflash":
        folder = zlab_folder(tmp_path / "x", target.model, dflash_base(target.model))
    elif way == "medusa":
        folder = medusa_folder(tmp_path / "x", medusa_heads(target.model))
    else:
        folder = write_block(tmp_path / "x", target.model, kind=way, markov="vanilla" if way == "dspark" else None)
    assert kind_of(folder) == way
    pair = custom_pair(str(tiny_folder), folder)
    assert pair.drafter == way and {"tree", "composite"} <= set(pair.drafters)
    models = ModelStore()
    for drafter, kind in ((way, ChainDrafter), ("tree", TreeDrafter), ("composite", CompositeDrafter)):
        loaded = models.get(pair, drafter=drafter, dtype="float32", device="cpu", progress=lambda step: None)
        lane = Lane("assisted", "tiny", drafter)
        assert type(build_drafter(loaded, lane, EagerRunner(loaded.target.model))) is kind
