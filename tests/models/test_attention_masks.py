"""Every mask that a target or a drafter passes on is one that CUDA's kernel takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticModel, StaticRunner
from playground.decoding.runners.static_cache import why_growing
from playground.models.attention import GROUPED, attend_by_groups
from playground.models.networks.dflash import DFlash
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.networks.mtp import MtpLayer
from tests.decoding.gemma4 import KINDS, gemma4_assistant, gemma4_target
from tests.decoding.real import FAMILIES, V, over, rounds_of
from tests.decoding.test_static import eagle3_head
from tests.published import dflash_base
from tests.sdpa import CudaMasks

TEXT = list(range(1, 12))
TREE = [-1, 0, 0]
CUDA = torch.device("cuda")  # whose attention a model is given; it stays on the CPU
TARGETS = {name: lambda build=build: build(0, 3) for name, build in FAMILIES.items()}
TARGETS |= {f"gemma4 {kind}": lambda kind=kind: gemma4_target(kind, V) for kind in KINDS}


def of_target(name: str) -> nn.Module:
    model = TARGETS[name]().bfloat16()  # in float32 a CPU does not use torch's kernels
    attend_by_groups(model, CUDA)
    return model


@pytest.mark.parametrize("target", TARGETS)
def test_targets(monkeypatch, target):
    model = of_target(target)
    runners = [EagerRunner(model)]
    if not why_growing(model.config):
        runners.append(StaticRunner(StaticModel(model, Graphs("as it is", None)), 64))
    masks = CudaMasks(monkeypatch)
    for runner in runners:
        runner.forward(TEXT, keep=1)
        runner.commit(len(TEXT))
        runner.forward([1, 5, 6, 7], keep=4, tree=TREE)
        runner.commit(len(TEXT) + 1, [0, 2])
        runner.forward([8], keep=1)
    assert masks.masked


@pytest.mark.parametrize("ids", [[1], [1, 5, 6, 7]], ids=["token", "tree"])
def test_a_static_pass_reads_each_key_and_value_once(monkeypatch, ids):
    """Neither copies of a group's keys for each of its query heads, nor copies of masks in every layer."""
    model = of_target("llama")
    static = StaticModel(model, Graphs("as it is", None))
    runner = StaticRunner(static, 64)
    runner.forward(TEXT, keep=1)
    runner.commit(len(TEXT))
    masks = CudaMasks(monkeypatch)
    runner.forward(ids, keep=1, tree=TREE if len(ids) > 1 else None)
    assert masks.entries == sum(entries.numel() for entries in static.cache.tensors)
    assert (masks.masked, masks.padded) == (3, 0)


@pytest.mark.parametrize("cached", [11, 16])
def test_the_mask_of_an_eager_tree_is_aligned(monkeypatch, cached):
    runner = EagerRunner(of_target("llama"))
    runner.forward(list(range(1, cached + 1)), keep=1)
    runner.commit(cached)
    masks = CudaMasks(monkeypatch)
    runner.forward([1, 5, 6, 7], keep=4, tree=TREE)
    assert masks.entries == 3 * 2 * 2 * (cached + 4) * 8  # layers, keys and values, key heads, entries, their width
    assert (masks.masked, masks.padded) == (3, 0)


def mtp(target) -> nn.Module:
    layer = MtpLayer(target, torch.arange(V)).eval()
    layer.start_from(target)
    return layer


DRAFTERS = {
    "mtp": mtp,
    "eagle3": eagle3_head,
    "dflash": lambda target: DFlash(dflash_base(target).bfloat16(), target, frozenset()),
    "dflash windows": lambda target: DFlash(
        dflash_base(target, layer_types=["sliding_attention", "full_attention"], sliding_window=7).bfloat16(),
        target,
        frozenset(["sliding_attention"]),
    ),
}


@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafters(monkeypatch, drafter, way):
    target = of_target("llama")
    network = DRAFTERS[drafter](target)
    assert network.base.config._attn_implementation == GROUPED
    masks = CudaMasks(monkeypatch)
    rounds_of(target, over(network, way), TEXT, max_new_tokens=12)
    assert masks.masked


@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("kind", KINDS)
def test_gemma_4_assistants(monkeypatch, kind, way):
    target = of_target(f"gemma4 {kind}")
    assistant = gemma4_assistant(target).bfloat16()
    attend_by_groups(assistant, CUDA)
    masks = CudaMasks(monkeypatch)
    rounds_of(target, over(Gemma4Assistant(assistant, target), way), TEXT, max_new_tokens=12)
    assert masks.masked
