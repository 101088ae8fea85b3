"""Sampled runs follow the target's distribution over all continuations, whatever drafts: 20,000 runs of each way of
drafting, on transformers' real classes in float32, against the exact probabilities by a chi-square test."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground.decoding import verify
from playground.decoding.drafters.adaptive import AdaptiveDrafter
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.build import BRANCHES
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.early_exit import EarlyExitDrafter
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.ngram import NgramDrafter
from playground.decoding.drafters.suffix import SuffixDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.drafters.universal import UniversalDrafter
from playground.models.dflash import DFlash
from playground.models.early_exit import first_layers
from playground.models.gemma4 import Gemma4Assistant
from playground.models.load import LoadedModel
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.fakes import FakeModel
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.law import RememberedBranches, RememberedDrafts, follows_the_law, law_of
from tests.decoding.test_trained_drafters import network_for
from tests.decoding.test_universal import loaded as model_of
from tests.decoding.test_universal import pieces  # noqa: F401 (a fixture)
from tests.models.test_eagle3 import load as load_eagle3
from tests.models.test_eagle3 import write_head
from tests.native import native_places, save_native  # noqa: F401 (a fixture)
from tests.published import dflash_base, medusa_heads
from tests.tiny import small_llama

V = 4
LOW, HIGH, CUT = (
    dict(temperature=0.7, top_p=0.9),
    dict(temperature=1.5, top_k=3, repetition_penalty=1.3),
    dict(temperature=1.0, top_k=3, top_p=0.8),
)


@cache
def llama(layers: int = 3, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        initializer_range=0.6,
    )
    return LlamaForCausalLM(config).eval()


def branches(network, model=None, prompt=None) -> RememberedBranches:
    """What the network grows, as the project would have it grow."""
    model = llama() if model is None else model
    given = {} if prompt is None else {"prompt": prompt}
    return RememberedBranches(model, partial(BRANCHES[type(network)], network), **given)


def chain(grown: RememberedBranches, vocab_size: int = V):
    return lambda sampler, target: ChainDrafter(grown, DraftChoice(grown.draft_ids, vocab_size, sampler), ())


def tree(grown: RememberedBranches):
    return lambda sampler, target: TreeDrafter(grown, 5, ())


def mtp() -> RememberedBranches:
    return branches(network_for("mtp", llama(), torch.tensor([0, 1, 3])))


def eagle3(folder) -> RememberedBranches:
    layers = dict(eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    return branches(load_eagle3(write_head(folder / "head", llama(), [0, 1, 3], **layers), llama()).network)


def early_exit():
    """On the memory of both laws; the target's cache of the first layers is the fake's text."""
    law = law_of(first_layers(LoadedModel(llama(), None, "tiny", "random"), 1).model)
    return lambda sampler, target: EarlyExitDrafter(law, target, sampler, ())


def assistant(kind=AssistantDrafter):
    law = law_of(llama(layers=1, seed=1))
    return lambda sampler, target: kind(FakeModel(law, V), V, sampler, ())


def either(kind, grown: RememberedBranches):
    return lambda sampler, target: kind(NgramDrafter(4, 2), TreeDrafter(grown, 5, ()))


# What makes each way's drafter for the tiny Llama. A folder to write into is given.
WAYS = {
    "none": lambda folder: lambda sampler, target: NoDrafter(),
    "ngram": lambda folder: lambda sampler, target: NgramDrafter(),
    "suffix": lambda folder: lambda sampler, target: SuffixDrafter(),
    "assistant": lambda folder: assistant(),
    "early-exit": lambda folder: early_exit(),
    "mtp": lambda folder: chain(mtp()),
    "heads": lambda folder: chain(branches(network_for("heads", llama(), torch.tensor([0, 1, 3])))),
    "medusa": lambda folder: chain(branches(medusa_heads(llama()))),
    "dflash": lambda folder: chain(branches(DFlash(dflash_base(llama()), llama(), frozenset()))),
    "eagle3": lambda folder: chain(eagle3(folder)),
    "tree": lambda folder: tree(mtp()),
    "composite": lambda folder: either(CompositeDrafter, mtp()),
    "adaptive": lambda folder: either(AdaptiveDrafter, mtp()),
}
# Several settings where verification differs: drafts that were drawn, that were looked up, and trees.
CASES = [(way, sampling) for way in ("ngram", "mtp", "tree") for sampling in (LOW, HIGH, CUT)]
CASES += [(way, (LOW, HIGH, CUT)[i % 3]) for i, way in enumerate(WAYS) if way not in ("ngram", "mtp", "tree")]


@pytest.mark.parametrize(("way", "sampling"), CASES, ids=str)
def test_runs_follow_the_targets_law(way, sampling, tmp_path):
    assert follows_the_law(law_of(llama()), V, WAYS[way](tmp_path), **sampling)


@pytest.mark.parametrize("way", [chain, tree])
def test_runs_with_a_gemma_4_assistant_follow_the_targets_law(way):
    prompt = [0, 1, 0, 2, 0, 1, 2, 2]  # longer than the window
    model = gemma4_target("unified", V)
    network = Gemma4Assistant(gemma4_assistant(model, ordered=False), model)
    assert follows_the_law(law_of(model), V, way(branches(network, model, prompt)), prompt, **LOW)


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 3), ("glm", 1)])
def test_runs_with_a_targets_own_mtp_layers_follow_its_law(
    family,
    layers,
    native_places,  # noqa: F811
    tiny_tokenizer,
    tmp_path,
):
    folder = save_native(family, layers, tmp_path / "tiny", tiny_tokenizer, V)
    pair = custom_pair(str(folder), None, "mtp")
    loaded = ModelStore().get(pair, drafter="mtp", dtype="float32", device="cpu", progress=lambda step: None)
    model = loaded.target.model
    assert follows_the_law(law_of(model), V, chain(branches(loaded.drafting.network, model)), **HIGH)


def test_runs_with_another_tokenizer_follow_the_targets_law(tiny_tokenizer, pieces):  # noqa: F811
    target, assistant = small_llama(tiny_tokenizer), model_of(pieces)
    drafter = RememberedDrafts(lambda: UniversalDrafter(assistant, tiny_tokenizer))
    prompt = tiny_tokenizer("The waves count")["input_ids"]
    assert follows_the_law(law_of(target), len(tiny_tokenizer), lambda sampler, target: drafter, prompt, **CUT)


exact = verify.speculative_sampling


def all_accepted(draft, p, sampler):
    return len(draft.ids), sampler.draw(p[-1])


def typical(draft, p, sampler):
    """Medusa's: a draft token is kept where the target finds it likely enough."""
    likely = [float(p[i, id_]) > 0.2 for i, id_ in enumerate(draft.ids)]
    n = likely.index(False) if False in likely else len(likely)
    return n, sampler.draw(p[n])


def redrawn(draft, p, sampler):
    """From p, and not from what p has over q."""
    n, _ = exact(draft, p, sampler)
    return n, sampler.draw(p[n])


class ToldAsDrawn(AssistantDrafter):
    """Drafts the likeliest tokens, and tells q as if they had been drawn."""

    def _next(self, text):
        choice = super()._next(text)
        best = int(choice.probabilities.argmax())
        return choice._replace(id=best, q=float(choice.probabilities[best]))


def caught(kind=AssistantDrafter) -> bool:
    return not follows_the_law(law_of(llama()), V, assistant(kind), draws=5_000, temperature=1.0)


@pytest.mark.parametrize("rule", [all_accepted, typical, redrawn])
def test_a_wrong_rule_is_caught(rule, monkeypatch):
    assert not caught()
    monkeypatch.setattr(verify, "speculative_sampling", rule)
    assert caught()


def test_a_wrong_q_is_caught():
    assert caught(ToldAsDrawn)
