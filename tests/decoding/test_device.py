"""On a device that is not the CPU every way of drafting drafts what it drafts on the CPU, and mixes nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from playground.decoding.drafters.assistant import AssistantDrafter, EarlyExitDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.early_exit import first_layers
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding import real
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.real import NewDrafter, V, gemma, ids_of, llama, over, rounds_of
from tests.far import FAR, FarDevice, move
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load as load_block
from tests.models.networks.test_eagle3 import LAYOUTS, load, loaded, write_head
from tests.models.networks.test_peagle import load as load_peagle
from tests.models.networks.test_peagle import write as write_peagle
from tests.native import native_places, save_native  # noqa: F401 (a fixture)
from tests.published import dflash_base, medusa_heads
from tests.selection import selected

EVEN = list(range(0, V, 2))
OWN = {"own mtp layer": ("qwen", 1), "own mtp layers": ("glm", 3)}  # the first target has recurrent layers
PROMPT = [5, 6, 7, 8, 5, 6, 7, 9, 3]  # longer than a window


def models(kind: str, folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, nn.Module]:
    """A target and what drafts for it."""
    if kind == "gemma4":
        target = gemma4_target("text", V)
        return target, Gemma4Assistant(gemma4_assistant(target), target)
    if kind in OWN:
        pair = custom_pair(str(save_native(*OWN[kind], folder / "tiny", tokenizer)), None, "mtp")
        pair = ModelStore().get(pair, drafter="mtp", dtype="float32", device="cpu", progress=lambda step: None)
        return pair.target.model, pair.drafting.network
    target = gemma(0, 3) if kind == "mtp" else llama(0, 7 if "eagle" in kind else 3)
    torch.manual_seed(7)
    match kind:
        case "mtp":
            network = MtpLayer(target, torch.tensor(EVEN)).eval()
            network.start_from(target)
        case "heads":
            network = ParallelHeads(target, torch.tensor(EVEN), 4).eval()
        case "medusa":
            network = medusa_heads(target)
        case "dflash":
            network = DFlash(dflash_base(target), target, frozenset())
        case "eagle3":
            network = load(write_head(folder / "head", target, EVEN, **LAYOUTS["safeai"]), target).network
        case "peagle":
            network = load_peagle(write_peagle(folder / "peagle", target), target).network
        case "dspark":
            parts = dict(kind="dspark", ids=EVEN, markov="rnn", confidence="markov")
            network = load_block(write_block(folder / "dspark", target, **parts), target).network
        case "dflash2":
            network = load_block(write_block(folder / "dflash2", target, kind="dflash2"), target).network
        case "assistant":
            network = llama(1, 1)
        case "early-exit":
            network = first_layers(loaded(target), 2).model
    return target, network


def drafter(kind: str, way: str, network: nn.Module) -> NewDrafter:
    if kind == "assistant":
        return lambda target: AssistantDrafter(EagerRunner(network), V, {V - 1})
    if kind == "early-exit":
        return lambda target: EarlyExitDrafter(network, target, {V - 1})
    return over(network, way)


SAMPLED = dict(temperature=0.8, repetition_penalty=1.2)
BRANCHING = ("mtp", "heads", "medusa", "dflash", "dspark", "dflash2", "eagle3", "peagle", "gemma4")


STATIC = ("mtp", "heads", "dflash", "dspark", "eagle3", "early-exit", "assistant")
CHAINS = [(kind, "chain", SAMPLED) for kind in (*BRANCHING, *OWN, "assistant", "early-exit")]
TREES = [(kind, "tree", {}) for kind in BRANCHING]


@pytest.mark.parametrize(
    ("kind", "way", "sampling"),
    selected(
        [*CHAINS, *TREES],
        [*CHAINS, *((kind, "tree", {}) for kind in ("mtp", "heads"))],  # level by level, and at once
    ),
)
def test_the_same_is_drafted_and_written(kind, way, sampling, native_places, tiny_tokenizer, tmp_path):  # noqa: F811
    target, network = models(kind, tmp_path, tiny_tokenizer)
    far_target, far_network = copy.deepcopy((target, network))
    move(far_target, far_network)
    here = rounds_of(target, drafter(kind, way, network), PROMPT, max_new_tokens=6, **sampling)
    with FarDevice():
        assert far_target.device == FAR
        there = rounds_of(far_target, drafter(kind, way, far_network), PROMPT, max_new_tokens=6, **sampling)
    assert ids_of(there) == ids_of(here)
    assert [[token.id for token in r.drafted] for r in there] == [[token.id for token in r.drafted] for r in here]
    assert any(r.drafted for r in here)


@pytest.mark.parametrize(
    ("kind", "way"),
    selected(
        [*((kind, "chain") for kind in STATIC), *((kind, "tree") for kind in STATIC[:4])],
        [("mtp", "tree"), ("dspark", "chain"), ("eagle3", "chain"), ("assistant", "chain")],
    ),
)
def test_static_passes_draft_and_write_it_too(monkeypatch, kind, way, tiny_tokenizer, tmp_path):
    monkeypatch.setattr(f"{__name__}.gemma", llama)  # which has no windows
    target, network = models(kind, tmp_path, tiny_tokenizer)
    far_target, far_network = copy.deepcopy((target, network))
    move(far_target, far_network)
    here = rounds_of(target, drafter(kind, way, network), PROMPT, max_new_tokens=6)
    kept: dict[PreTrainedModel, StaticModel] = {}

    def static(model: PreTrainedModel) -> StaticRunner:
        return StaticRunner(kept.setdefault(model, StaticModel(model, Graphs("as it is", None))), 64)

    monkeypatch.setattr(real, "EagerRunner", static)
    monkeypatch.setattr(f"{__name__}.EagerRunner", static)
    with FarDevice():
        there = rounds_of(far_target, drafter(kind, way, far_network), PROMPT, max_new_tokens=6)
    assert ids_of(there) == ids_of(here)
    assert [[token.id for token in r.drafted] for r in there] == [[token.id for token in r.drafted] for r in here]
    assert kept
