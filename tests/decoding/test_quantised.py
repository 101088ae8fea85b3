"""Drafting over targets with int8 and int4 weights, on transformers' real classes.

int4 rounds weights only, and float32 is exact enough for the same tokens. int8 rounds what goes into each layer, too: a
difference in float32's last place can turn a rounding, and now and then a near-tie. In float64 none does.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from playground.decoding.drafters.assistant import EarlyExitDrafter
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.early_exit import first_layers
from playground.models.networks.gemma4 import Gemma4Assistant
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.real import NewDrafter, deepseek, generated, ids_of, over, prompts, rounds_of
from tests.decoding.test_trained_drafters import drafting, network_for
from tests.decoding.test_transformers_models import run
from tests.models.networks.test_eagle3 import LAYOUTS, write_head
from tests.models.networks.test_eagle3 import load as load_eagle3
from tests.published import dflash_base, medusa_heads
from tests.quantised import ENDS, SIZES, V, llama, quantised
from tests.selection import selected

COMPUTE = {8: torch.float64, 4: torch.float32}


@pytest.fixture(scope="module")
def target_of(tmp_path_factory):
    return cache(lambda bits: quantised(llama(), tmp_path_factory.mktemp("target"), bits, COMPUTE[bits]))


def early_exit(model) -> NewDrafter:
    layers = first_layers(LoadedModel(model, NumberTokenizer(), "tiny", ""), 1).model
    return lambda target: EarlyExitDrafter(layers, target, {V - 1})


WAYS = ("ngram", "assistant", "early exit", "mtp", "mtp tree", "heads", "heads tree")


@pytest.mark.parametrize(
    ("bits", "way"), selected(product((8, 4), WAYS), [((8, 4)[i % 2], way) for i, way in enumerate(WAYS)])
)
def test_greedy_equals_generate_token_for_token(target_of, bits, way):
    target = target_of(bits)
    network = network_for(way, target, torch.arange(V)) if way.startswith(("mtp", "heads")) else None
    drafted = 0
    for prompt in prompts(2):
        if network:
            rounds = rounds_of(target, drafting(way, network), prompt)
        elif way == "early exit":
            rounds = rounds_of(target, early_exit(target), prompt)
        else:
            rounds = run((target, target), way, prompt)
        assert ids_of(rounds) == generated(target, prompt)
        drafted += sum(len(round_.drafted) for round_ in rounds)
    assert drafted > 5


@pytest.mark.parametrize("bits", [8, 4])
def test_an_assistant_of_other_weights_may_be_quantised_or_not(target_of, bits, tmp_path):
    target = target_of(bits)
    for assistant in (llama(1), quantised(llama(1), tmp_path, 4)):
        for prompt in prompts(2):
            assert ids_of(run((target, assistant), "assistant", prompt)) == generated(target, prompt)


def experts():
    torch.manual_seed(0)
    sizes = dict(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16, num_hidden_layers=2)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **ENDS, **sizes, initializer_range=0.2)).eval()


@pytest.mark.parametrize("bits", [8, 4])
def test_of_a_mixture_of_experts_the_experts_stay_whole(tmp_path, bits):
    model = quantised(experts(), tmp_path, bits, COMPUTE[bits])
    model.set_experts_implementation("eager")  # the usual one knows no float64
    layer = model.model.layers[0]
    assert layer.mlp.experts.gate_up_proj.is_floating_point() and not layer.self_attn.q_proj.weight.is_floating_point()
    network = network_for("mtp tree", model, torch.arange(V))
    for prompt in prompts(2):
        expected = generated(model, prompt)
        assert ids_of(run((model, model), "assistant", prompt)) == expected
        assert ids_of(rounds_of(model, over(network, "tree"), prompt)) == expected


def test_latent_attention_in_int4(tmp_path):
    model = quantised(deepseek(0, 2), tmp_path, 4)
    for prompt in prompts(2):
        assert ids_of(run((model, model), "ngram", prompt)) == generated(model, prompt)


@pytest.mark.parametrize("way", ["chain", pytest.param("tree", marks=pytest.mark.slow)])
def test_published_drafters_read_the_head_and_embedding_of_a_target_in_int4(tmp_path, way):
    target = quantised(llama(7), tmp_path / "target", 4)
    head = write_head(tmp_path / "head", target, range(V), **LAYOUTS["safeai"])
    networks = [
        medusa_heads(target, own=False),
        DFlash(dflash_base(target), target, frozenset()),
        load_eagle3(head, target).network,
    ]
    for prompt in prompts(2):
        expected = generated(target, prompt)
        for network in networks:
            assert ids_of(rounds_of(target, over(network, way), prompt)) == expected


def test_a_gemma_4_assistant_reads_the_embedding_of_a_target_in_int4(tmp_path):
    target = quantised(gemma4_target("text", V), tmp_path, 4)
    new_drafter = over(Gemma4Assistant(gemma4_assistant(target), target))
    for prompt in prompts(2):
        assert ids_of(rounds_of(target, new_drafter, prompt)) == generated(target, prompt)
