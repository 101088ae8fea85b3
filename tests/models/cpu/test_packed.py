"""Weights in float16, sums in float32."""

from __future__ import annotations

import copy
import mmap

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from playground.models import device
from playground.models.cpu.native.layers import of_linear
from playground.models.cpu.native.library import engine
from playground.models.cpu.packed import LARGE_PAGE, ROWS, PackedLinear, pack
from playground.models.load import Format, load
from playground.models.quantised import precision
from playground.models.sizing import weights_bytes
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.packing import CPU, needs_packing

pytestmark = needs_packing


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48, 33), (1, 1)])
def test_it_is_the_layer_whose_weights_are_rounded_to_float16(shape, bias):
    layer, x = nn.Linear(*shape, bias=bias), torch.randn(2, 7, shape[0])
    packed = PackedLinear(layer)
    layer.weight.data = layer.weight.data.half().float()
    for of_any_rank in (x, x[0], x[0, 0], x[:, :0]):
        torch.testing.assert_close(packed(of_any_rank), layer(of_any_rank))
    assert torch.equal(packed.weight, layer.weight)


@pytest.mark.parametrize("tokens", [2, 5, 14, 33])
def test_what_comes_out_for_a_token_does_not_depend_on_the_tokens_beside_it(tokens):
    packed, x = PackedLinear(nn.Linear(96, 130)), torch.randn(tokens, 96)
    together, alone = packed(x), torch.cat([packed(row[None]) for row in x])
    torch.testing.assert_close(together, alone)
    assert torch.equal(together, alone) or torch.backends.cpu.get_cpu_capability() == "AVX2"


def test_a_head_goes_on_sharing_its_weight_with_the_embedding(tiny_llama):
    model = copy.deepcopy(tiny_llama)
    embedding = model.get_input_embeddings()
    model.get_output_embeddings().weight = embedding.weight
    pack(model)
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert model.get_output_embeddings().weight.data_ptr() == embedding.weight.data_ptr()


def test_the_store_packs_target_and_assistant_and_the_trace_says_so(tiny_folder):
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    models = ModelStore().get(pair, drafter="assistant", dtype="float16", device="cpu", progress=lambda step: None)
    assert models.drafting is models.target
    assert precision(models.target.model) == "float16 weights, float32"


@pytest.mark.skipif(not engine() or not hasattr(mmap, "MADV_HUGEPAGE"), reason="the engine's layers, on Linux")
def test_matrices_lie_side_by_side_in_large_pages_and_stay_where_another_network_has_put_them():
    first = nn.Sequential(nn.Linear(1024, 1000, bias=False), nn.Linear(1000, 512, bias=False))
    x = torch.randn(3, 1024)
    expected = of_linear(first[1])(of_linear(first[0])(x))
    pack(first)
    places = [layer.groups.data_ptr() for layer in first]
    assert places[0] % LARGE_PAGE == 0 and places[1] == places[0] + -(-first[0].groups.numel() // 64) * 64
    assert torch.equal(first(x), expected)
    assert weights_bytes(first) == sum(layer.groups.numel() for layer in first)
    pack(nn.Sequential(first, nn.Linear(1024, 1024)))
    assert [layer.groups.data_ptr() for layer in first] == places


@pytest.mark.usefixtures("torch_computes")
def test_packed_weights_are_counted_as_what_they_take_with_their_padding(tiny_llama):
    model = copy.deepcopy(tiny_llama)
    whole, head = weights_bytes(model), model.get_output_embeddings()
    linear = [m for m in model.modules() if type(m) is nn.Linear]
    before = sum(4 * m.weight.numel() for m in linear if m is not head)
    pack(model)
    packed = sum(2 * ROWS * m.out_features for m in linear)
    assert weights_bytes(model) == pytest.approx(whole - before + packed, rel=1e-3)
    assert weights_bytes(model, shared_with=model) == 0


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_checkpoint_of_half_precision_is_packed_from_it_and_computes_in_float32(
    stored, tiny_llama, tiny_tokenizer, tmp_path
):
    model = copy.deepcopy(tiny_llama).to(stored)
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), Format(torch.float32, CPU, device.HALF), lambda step: None).model
    assert loaded.dtype == loaded.config.dtype == torch.float32
    assert loaded.get_input_embeddings().weight.dtype == stored, "its rows are converted when they are read"
    assert loaded.get_output_embeddings().weight.dtype == stored
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, model.float()(ids).logits, rtol=1e-4, atol=1e-5)


def test_a_mixture_of_experts_is_not_packed_but_computes_in_the_dtype_that_was_asked_for(tiny_tokenizer, tmp_path):
    MixtralForCausalLM(
        MixtralConfig(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                      num_key_value_heads=1, num_local_experts=4)
    ).save_pretrained(tmp_path)  # fmt: skip
    tiny_tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), Format(torch.bfloat16, CPU, device.HALF), lambda step: None).model
    assert precision(loaded) == "bfloat16"


@pytest.mark.usefixtures("torch_computes")
@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_auto_packs_on_every_x86_cpu(monkeypatch, has_bfloat16):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bfloat16}, raising=False)
    assert [device.weight_bits(name, CPU) for name in ("auto", "float16", "float32", "bfloat16")] == [
        16,
        16,
        None,
        None,
    ]
    assert device.resolve_dtype("float16", CPU) == torch.float32


def test_a_cpu_that_cannot_pack_computes_in_what_was_asked_for(monkeypatch):
    monkeypatch.setattr(device, "can_pack", lambda where: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False}, raising=False)
    assert (device.resolve_dtype("auto", CPU), device.weight_bits("auto", CPU)) == (torch.float32, None)
    assert (device.resolve_dtype("float16", CPU), device.weight_bits("float16", CPU)) == (torch.float16, None)
