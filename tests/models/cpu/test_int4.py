"""Weights of four bits, as a GGUF file stores them: the same numbers as when it is dequantised."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.models import device
from playground.models.cpu import int4
from playground.models.cpu.int4 import (
    NATIVE_TYPES,
    SAVED,
    TYPES,
    BlockLinear,
    Int4Linear,
    multiplies_blocks,
    read_gguf,
)
from playground.models.cpu.native.layers import NativeLinear, of_blocks
from playground.models.cpu.native.library import engine, splits_activations
from playground.models.cpu.packed import PackedLinear
from playground.models.fetch.files import ModelFiles
from playground.models.load import Format, read
from playground.models.quantised import precision
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests import gguf
from tests.engine import blocks as random_blocks

CPU = torch.device("cpu")
needs_kernel = pytest.mark.skipif(not multiplies_blocks(CPU), reason="torch multiplies four bits on x86 alone")
needs_engine = pytest.mark.skipif(engine() is None, reason="the engine does not run here")
KINDS = [Kind.Q4_0, Kind.Q4_1]


def blocks(kind: Kind, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks, and the matrix they stand for."""
    whole = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    stored = quants.quantize(whole, kind)
    return torch.from_numpy(stored).unflatten(1, (columns // 32, -1)), torch.from_numpy(quants.dequantize(stored, kind))


@needs_engine
@pytest.mark.parametrize("name", (*TYPES, *NATIVE_TYPES))
@pytest.mark.parametrize("rows", [48, 37])
def test_the_engine_multiplies_with_the_matrix_that_gguf_dequantises(name, rows):
    stored, bias = random_blocks(name, rows, 512), torch.linspace(-3, 3, rows)
    whole = torch.from_numpy(quants.dequantize(stored.flatten(1).numpy(), Kind[name]))
    torch.testing.assert_close(of_blocks(stored, bias)(torch.eye(512)), whole.T + bias, rtol=1e-6, atol=2e-6)


@needs_engine
@pytest.mark.parametrize("name", (*TYPES, *NATIVE_TYPES))
def test_blocks_that_llama_cpp_made_stand_for_what_it_reads_in_them(name):
    made = json.loads(Path(__file__).with_name("blocks.json").read_text())[name]
    stored = np.frombuffer(base64.b64decode(made["blocks"]), np.uint8).reshape(2, -1)
    whole = quants.dequantize(stored, Kind[name])
    assert hashlib.sha256(whole.tobytes()).hexdigest() == made["sha256"]
    layer = of_blocks(torch.from_numpy(stored.copy()).view(2, -1, GGML_QUANT_SIZES[Kind[name]][1]), None)
    torch.testing.assert_close(layer(torch.eye(256)), torch.from_numpy(whole).T, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_decoded_to_the_matrix_that_gguf_dequantises(kind):
    stored, whole = blocks(kind, 16, 96)
    q, scale, zero = BlockLinear(stored, None).decoded()
    wide = lambda x: x.repeat_interleave(32, dim=1)  # noqa: E731
    torch.testing.assert_close(wide(scale) * (q.float() - 8) + wide(zero), whole)


@needs_kernel
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [None, torch.linspace(-3, 3, 48)])
def test_a_layer_is_the_dequantised_one_but_for_bfloat16(kind, bias):
    stored, whole = blocks(kind, 48, 96)
    layer, x = Int4Linear(BlockLinear(stored, bias)), torch.randn(2, 7, 96)
    expected = nn.functional.linear(x, whole, bias)
    for of_any_rank in (x, x[0], x[0, 0], x[:, :0]):
        out = layer(of_any_rank)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, nn.functional.linear(of_any_rank, whole, bias), rtol=0.05, atol=0.2)
    assert (layer(x) - expected).abs().mean() < 0.01 * expected.abs().mean()


@needs_kernel
@pytest.mark.parametrize("tokens", [2, 5, 14, 33])
def test_what_comes_out_for_a_token_does_not_depend_on_the_tokens_beside_it(tokens):
    layer, x = Int4Linear(BlockLinear(blocks(Kind.Q4_1, 80, 96)[0], None)), torch.randn(tokens, 96)
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


def from_gguf(folder: Path, bits: int | None = None, own: bool = False) -> PreTrainedModel:
    return read(ModelFiles(folder, "tiny", "", gguf="tiny.gguf"), Format(torch.float32, CPU, bits, own))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def checkpoint(request, tmp_path, tiny_tokenizer) -> tuple[Path, PreTrainedModel]:
    """A folder with a GGUF file of four bits, and the same model dequantised by transformers."""
    gguf.write(tmp_path / "tiny.gguf", request.param, len(tiny_tokenizer))
    return tmp_path, from_gguf(tmp_path)


def test_the_file_gives_the_rows_of_every_layer_as_transformers_orders_them(checkpoint):
    folder, whole = checkpoint
    found = read_gguf(folder / "tiny.gguf", whole)
    layers = {n: m for n, m in whole.named_modules() if type(m) is nn.Linear and n != "lm_head"}
    assert found.keys() == layers.keys()
    for name, rows in found.items():
        q, scale, zero = BlockLinear(rows, None).decoded()
        decoded = scale.repeat_interleave(32, 1) * (q.float() - 8) + zero.repeat_interleave(32, 1)
        torch.testing.assert_close(decoded, layers[name].weight)


@needs_kernel
@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("computes", ["torch", "engine"])
def test_a_checkpoint_of_four_bits_is_computed_with_as_it_is(checkpoint, bits, computes, request):
    if computes == "torch":
        request.getfixturevalue("torch_computes")
    folder, whole = checkpoint
    model = from_gguf(folder, bits, own=True)
    assert precision(model) == f"int4 weights, {'bfloat16' if computes == 'torch' else 'int16 activations'}"
    kind = PackedLinear if computes == "torch" else NativeLinear
    assert isinstance(model.get_output_embeddings(), kind), "drafters read its rows"
    assert not any(type(module) is nn.Linear for module in model.modules())
    ids = list(range(1, 12))
    expected, seen = (EagerRunner(each).forward(ids, keep=11) for each in (whole, model))
    assert (seen - expected).abs().mean() < (0.03 if computes == "torch" else 1e-4) * expected.abs().mean()


@needs_engine
def test_a_type_of_other_bits_keeps_them_and_int4_says_why_it_cannot_be(tmp_path):
    gguf.write(tmp_path / "tiny.gguf", Kind.Q8_0, 300)
    assert precision(from_gguf(tmp_path, 16, own=True)) == "int8 weights, int16 activations"
    with pytest.raises(PlaygroundError, match="Q4_0"):
        from_gguf(tmp_path, 4, own=True)


@pytest.mark.parametrize(
    ("name", "rows", "named"),
    [
        ("blk.0.attn_k.weight", 16, "k_proj.weight is 16 × 64, and 32 × 64"),
        ("blk.1.attn_norm.weight", 32, "input_layernorm.weight is 32, and 64"),
        ("token_embd.weight", 200, "embed_tokens.weight is 200 × 64, and 300 × 64"),
    ],
)
@pytest.mark.parametrize("bits", [None, 16])
def test_a_tensor_of_another_shape_than_the_config_says_is_refused_by_its_name(name, rows, named, bits, tmp_path):
    gguf.write(tmp_path / "tiny.gguf", Kind.Q8_0, 300, cut={name: rows})
    with pytest.raises(PlaygroundError, match=named):
        from_gguf(tmp_path, bits, own=True)


@needs_kernel
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", "int4 weights, int16 activations"),
        ("int4", "int4 weights, int16 activations"),
        ("float16", "bfloat16 weights, "),
        ("bfloat16", "bfloat16 weights, "),
    ],
)
def test_the_store_takes_the_blocks_beside_converted_weights(checkpoint, tiny_tokenizer, dtype, expected):
    folder, whole = checkpoint
    converted = folder / "converted"
    whole.to(torch.bfloat16).save_pretrained(converted)
    tiny_tokenizer.save_pretrained(converted)
    (converted / SAVED).parent.mkdir()
    save_file(read_gguf(folder / "tiny.gguf", whole), converted / SAVED)
    pair = custom_pair(str(converted), None)
    models = ModelStore().get(pair, drafter="ngram", dtype=dtype, device="cpu", progress=lambda step: None)
    if expected.endswith(", "):
        expected += "2 x bfloat16 activations" if splits_activations() else "float32"
    assert precision(models.target.model) == expected
    assert ("of 4 bits" in models.target.weights) == expected.startswith("int4")


@pytest.mark.parametrize(
    ("capability", "platform", "keeps"),
    [("AVX512", "linux", True), ("AVX2", "darwin", True), ("DEFAULT", "linux", False), ("AVX512", "win32", False)],
)
def test_without_the_engine_blocks_are_kept_where_torch_is_fast(
    monkeypatch, torch_computes, capability, platform, keeps
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(int4.sys, "platform", platform)
    names = ("auto", "int4", "float16", "bfloat16", "float32", "int8")
    assert [device.keeps_blocks(name, CPU) for name in names] == [keeps, keeps, False, False, False, False]
    assert not device.keeps_blocks("auto", torch.device("cuda"))
