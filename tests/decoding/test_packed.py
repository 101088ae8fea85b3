"""Drafting over targets whose weights a CPU keeps in float16, on transformers' real classes, drafters packed alike."""

from __future__ import annotations

import pytest
import torch

from playground.models.packed import can_pack, is_packed, pack
from tests.decoding.real import FAMILIES, V, generated, ids_of, prompts, rounds_of
from tests.decoding.test_trained_drafters import drafting, network_for
from tests.decoding.test_transformers_models import run
from tests.native import qwen

pytestmark = pytest.mark.skipif(not can_pack(torch.device("cpu")), reason="torch packs float16 on x86 alone")


def packed(network):
    pack(network)
    assert is_packed(network)
    return network


@pytest.mark.parametrize("way", ["assistant", "ngram", "mtp", "mtp tree", "heads", "heads tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_token_for_token(family, way):
    target, assistant = packed(FAMILIES[family](0, 2)), packed(FAMILIES[family](1, 1))
    network = packed(network_for(way, target, torch.arange(V))) if way.startswith(("mtp", "heads")) else None
    drafted = 0
    for prompt in prompts(8):
        rounds = rounds_of(target, drafting(way, network), prompt) if network else run((target, assistant), way, prompt)
        assert ids_of(rounds) == generated(target, prompt)
        drafted += sum(len(round_.drafted) for round_ in rounds)
    assert drafted > 20


def test_a_recurrent_target():
    torch.manual_seed(0)
    target = packed(qwen(2).eval())
    for prompt in prompts(5):
        assert ids_of(run((target, target), "assistant", prompt)) == generated(target, prompt)
