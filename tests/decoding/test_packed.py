"""Drafting over targets whose weights a CPU keeps in float16, on transformers' real classes, drafters packed alike."""

from __future__ import annotations

import pytest
import torch

from playground.decoding.drafters.assistant import EarlyExitDrafter
from playground.models.cpu.packed import is_packed, pack
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.early_exit import first_layers
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.real import FAMILIES, V, built, generated, ids_of, over, prompts, rounds_of
from tests.decoding.test_trained_drafters import drafting, network_for
from tests.decoding.test_transformers_models import run
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load as load_block
from tests.models.networks.test_eagle3 import LAYOUTS, write_head
from tests.models.networks.test_eagle3 import load as load_eagle3
from tests.models.networks.test_peagle import load as load_peagle
from tests.models.networks.test_peagle import write as write_peagle
from tests.native import native_places, qwen, save_native  # noqa: F401 (a fixture)
from tests.packing import needs_packing
from tests.published import dflash_base, medusa_heads
from tests.quantised import llama

pytestmark = needs_packing


def packed(network):
    pack(network)
    assert is_packed(network)
    return network


@pytest.mark.parametrize(
    ("family", "way"),
    [("llama", way) for way in ("assistant", "ngram", "mtp", "heads", "mtp tree")]
    + [
        pytest.param(*of, marks=pytest.mark.slow)
        for of in [("llama", "heads tree"), *((family, "mtp tree") for family in FAMILIES if family != "llama")]
    ],
)
def test_greedy_equals_generate_token_for_token(family, way):
    target, assistant = packed(FAMILIES[family](0, 2)), packed(FAMILIES[family](1, 1))
    network = packed(network_for(way, target, torch.arange(V))) if way.startswith(("mtp", "heads")) else None
    drafted = 0
    for prompt in prompts(3):
        rounds = rounds_of(target, drafting(way, network), prompt) if network else run((target, assistant), way, prompt)
        assert ids_of(rounds) == generated(target, prompt)
        drafted += sum(len(round_.drafted) for round_ in rounds)
    assert drafted > 20


def test_a_recurrent_target():
    torch.manual_seed(0)
    target = packed(qwen(2).eval())
    for prompt in prompts(2):
        assert ids_of(run((target, target), "assistant", prompt)) == generated(target, prompt)


METHODS = [("mtp", "deepseek", 3), ("mtp", "qwen", 1), ("tree", "mellum", 1)]


@pytest.mark.parametrize(("way", "family", "layers"), METHODS)
def test_the_targets_own_mtp_layers(native_places, tiny_tokenizer, tmp_path, way, family, layers):  # noqa: F811
    pair = custom_pair(str(save_native(family, layers, tmp_path / "tiny", tiny_tokenizer, V)), None, "mtp")
    models = ModelStore().get(pair, drafter="mtp", dtype="float16", device="cpu", progress=lambda step: None)
    packs = family == "qwen"  # the others have experts
    assert is_packed(models.target.model) == is_packed(models.drafting.network) == packs
    for prompt in prompts(2):
        rounds = rounds_of(models.target.model, built(models, way, nodes=12), prompt)
        assert ids_of(rounds) == generated(models.target.model, prompt)


SPARK = dict(kind="dspark", ids=list(range(0, V, 2)), markov="gated", confidence="markov")


@pytest.mark.parametrize("way", ["chain", pytest.param("tree", marks=pytest.mark.slow)])
def test_published_drafters(tmp_path, way):
    target = packed(llama(7))
    head = write_head(tmp_path / "head", target, range(V), **LAYOUTS["safeai"])
    networks = [
        medusa_heads(target, own=False),
        medusa_heads(target, own=True),
        DFlash(dflash_base(target), target, frozenset()),
        load_eagle3(head, target).network,
        load_peagle(write_peagle(tmp_path / "peagle", target), target).network,
        load_block(write_block(tmp_path / "dspark", target, **SPARK), target).network,
        load_block(write_block(tmp_path / "dflash2", target, kind="dflash2"), target).network,
    ]
    for network in networks:
        pack(network)
        for prompt in prompts(2):
            assert ids_of(rounds_of(target, over(network, way), prompt)) == generated(target, prompt)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_gemma_4_assistant(ordered):
    target = packed(gemma4_target("text", V))
    network = packed(Gemma4Assistant(gemma4_assistant(target, ordered), target))
    for prompt in prompts(2):
        assert ids_of(rounds_of(target, over(network), prompt)) == generated(target, prompt)


def test_first_layers_are_the_targets_own():
    target = packed(llama(3))
    layers = first_layers(LoadedModel(target, NumberTokenizer(), "tiny", ""), 1).model
    for prompt in prompts(2):
        rounds = rounds_of(target, lambda *its: EarlyExitDrafter(layers, *its, {V - 1}), prompt)
        assert ids_of(rounds) == generated(target, prompt)
    assert layers.model.layers[0] is target.model.layers[0]
