"""ModelFiles by columns: other places in memory, the same numbers."""

from __future__ import annotations

import pytest
import torch

from playground.models.cpu.packed import by_columns, lay_out
from playground.models.store import ModelStore
from playground.presets import custom_pair


def test_a_float32_matrix_lies_by_columns_and_is_the_same():
    weight = torch.randn(5, 3)
    laid = by_columns(weight)
    assert laid.stride() == (1, 5)
    assert torch.equal(laid, weight)


@pytest.mark.parametrize(
    "weight", [torch.randn(5, 3, dtype=torch.bfloat16), torch.randn(5, 3, device="meta")], ids=["bfloat16", "meta"]
)
def test_another_format_or_device_stays(weight):
    assert by_columns(weight) is weight


def test_a_layer_that_is_laid_out_computes_the_same():
    layer, x = torch.nn.Linear(48, 33), torch.randn(7, 48)
    before = layer(x)
    lay_out(layer)
    torch.testing.assert_close(layer(x), before)


def test_a_head_goes_on_sharing_its_weights_with_the_embedding():
    embedding, head, ids = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False), torch.tensor([[0, 8, 3]])
    head.weight = embedding.weight
    before = embedding(ids)
    lay_out(torch.nn.ModuleList([embedding, head]))
    assert head.weight is embedding.weight and head.weight.stride() == (1, 9)
    assert torch.equal(embedding(ids), before)


def test_the_store_lays_out_what_it_loads(tiny_folder):
    pair = custom_pair(str(tiny_folder), None)
    models = ModelStore().get(pair, drafter="ngram", dtype="float32", device="cpu", progress=lambda step: None)
    assert models.target.model.get_output_embeddings().weight.stride(0) == 1
