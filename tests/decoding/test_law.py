"""Sampled runs follow the target's distribution over all continuations, for every drafting method: 300 runs under
one setting (with `-m slow` 2,000 under each of four), on transformers' real classes in float32, against the exact
probabilities by a chi-square test."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache, partial
from statistics import median

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground.decoding import verify
from playground.decoding.drafters.assistant import AssistantDrafter, EarlyExitDrafter
from playground.decoding.drafters.base import NOTHING, NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter, SuffixDrafter
from playground.decoding.drafters.tree import SampledTreeDrafter, TreeDrafter
from playground.decoding.sampling import Sampler, whole
from playground.drafting_methods import METHODS as DRAFTING_METHODS
from playground.lane import Lane, Request, samples_drafts
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.early_exit import first_layers
from tests.decoding.fakes import FakeModel
from tests.decoding.law import PROMPT, RememberedBranches, branches, cases, chain, follows_the_law, law_of, tree
from tests.decoding.test_trained_drafters import network_for
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load as load_block
from tests.models.networks.test_eagle3 import load as load_eagle3
from tests.models.networks.test_eagle3 import write_head
from tests.models.networks.test_peagle import load as load_peagle
from tests.models.networks.test_peagle import write as write_peagle
from tests.published import dflash_base, medusa_heads
from tests.selection import selected

V = 4


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


@cache
def mtp() -> RememberedBranches:
    return branches(network_for("mtp", llama(), torch.tensor([0, 1, 3])), llama())


def eagle3(folder) -> RememberedBranches:
    layers = dict(eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return branches(load_eagle3(write_head(folder / "head", llama(), [0, 1, 3], **layers), llama()).network, llama())


def peagle(folder) -> RememberedBranches:
    layers = dict(eagle_aux_hidden_state_layer_ids=[0, 1, 2], mask_token_id=2)
    return branches(load_peagle(write_peagle(folder / "head", llama(), [0, 1, 3], **layers), llama()).network, llama())


def dflash2(folder) -> RememberedBranches:
    """Of four tokens two have a q above 0 in each slot."""
    folder = write_block(folder / "drafter", llama(), kind="dflash2", reads=(1, 3), selector_top_k=2)
    return branches(load_block(folder, llama()).network, llama())


def zlab(folder, kind: str) -> RememberedBranches:
    folder = write_block(folder / "drafter", llama(), layout="z-lab", kind=kind, reads=(0, 2))
    return branches(load_block(folder, llama()).network, llama())


def dspark(folder) -> RememberedBranches:
    parts = dict(kind="dspark", ids=[0, 1, 3], markov="rnn", confidence="markov", reads=(1, 3))
    return branches(load_block(write_block(folder / "drafter", llama(), **parts), llama()).network, llama())


def early_exit():
    """On the memory of both laws; the target's cache of the first layers is the fake's text."""
    law = law_of(first_layers(LoadedModel(llama(), None, "tiny", "random"), 1).model)
    return lambda target: EarlyExitDrafter(law, target, ())


def assistant(kind=AssistantDrafter):
    law = law_of(llama(layers=1, seed=1))
    return lambda target: kind(FakeModel(law, V), V, ())


def either(kind, grown: RememberedBranches):
    return lambda target: kind(NgramDrafter(4, 2), TreeDrafter(grown, 5, ()))


# What makes each way's drafter for the tiny Llama. A folder to write into is given.
METHODS = {
    "none": lambda folder: lambda target: NoDrafter(),
    "ngram": lambda folder: lambda target: NgramDrafter(),
    "suffix": lambda folder: lambda target: SuffixDrafter(),
    "assistant": lambda folder: assistant(),
    "early-exit": lambda folder: early_exit(),
    "mtp": lambda folder: chain(mtp(), V),
    "heads": lambda folder: chain(branches(network_for("heads", llama(), torch.tensor([0, 1, 3])), llama()), V),
    "medusa": lambda folder: chain(branches(medusa_heads(llama()), llama()), V),
    "dflash": lambda folder: chain(branches(DFlash(dflash_base(llama()), llama(), frozenset()), llama()), V),
    "dspark": lambda folder: chain(dspark(folder), V),
    "dspark tree": lambda folder: tree(dspark(folder), V),
    "dflash2": lambda folder: chain(dflash2(folder), V),
    "domino": lambda folder: chain(zlab(folder, "domino"), V),
    "jetspec": lambda folder: tree(zlab(folder, "jetspec"), V),
    "eagle3": lambda folder: chain(eagle3(folder), V),
    "peagle": lambda folder: chain(peagle(folder), V),
    "tree": lambda folder: tree(mtp(), V),
    "composite": lambda folder: either(CompositeDrafter, mtp()),
    "adaptive": lambda folder: either(AdaptiveDrafter, mtp()),
}


# The others are chains and trees of the classes that mtp, dflash2 and tree are of, over other networks, another lookup,
# and what adaptive does too.
OF_EACH_CLASS = ("none", "ngram", "assistant", "early-exit", "mtp", "dflash2", "tree", "adaptive")


@pytest.mark.parametrize(("sampling", "draws"), cases())
@pytest.mark.parametrize("way", selected(METHODS, OF_EACH_CLASS))
def test_runs_follow_the_targets_law(way, sampling, draws, tmp_path):
    assert follows_the_law(law_of(llama()), V, METHODS[way](tmp_path), draws=draws, **sampling)


# Ways of drafting that sample, with the rules that judge their drafts.
SAMPLED = [
    *((way, "token") for way in METHODS if way in DRAFTING_METHODS and samples_drafts(Lane("x", "t", way))),
    ("mtp", "block"),
    ("sampled tree", "recursive"),
    ("sampled tree", "traversal"),
    ("sampled composite", "traversal"),
]


def sampling_drafter(way, folder):
    if way in METHODS:
        return METHODS[way](folder)
    tree, several = SampledTreeDrafter(mtp(), 5, (), 2, vocab_size=V), way == "sampled composite"
    return lambda target: CompositeDrafter(NgramDrafter(4, 2), tree) if several else tree


TURNS = dict(temperature=2.0, top_k=2, then=[dict(temperature=1.6, top_k=2)])
THREE = dict(temperature=2.0, top_k=2, then=[dict(temperature=1.6, top_k=2), dict(temperature=1.8, top_k=2)], length=2)


@pytest.mark.parametrize(
    ("way", "verification"),
    selected(SAMPLED, [("assistant", "token"), ("sampled tree", "traversal")]),
)
def test_both_turns_of_a_conversation_follow_the_law_under_one_seed(way, verification, tmp_path):
    rule = partial(verify.decide, verification=verification)
    assert follows_the_law(law_of(llama()), V, sampling_drafter(way, tmp_path), rule=rule, **TURNS)


@pytest.mark.parametrize(
    ("way", "verification"),
    selected(SAMPLED, [("mtp", "block")]),
)
def test_three_turns_of_a_conversation_follow_the_law_under_one_seed(way, verification, tmp_path):
    rule = partial(verify.decide, verification=verification)
    assert follows_the_law(law_of(llama()), V, sampling_drafter(way, tmp_path), draws=600, rule=rule, **THREE)


class OwnNumbers(AssistantDrafter):
    """Draws from a sampler that it was built with, as one that an earlier turn has left would."""

    def propose(self, ids, k, stop_below, sampler):
        return super().propose(ids, k, stop_below, copy(sampler))


def test_a_drafter_that_does_not_draw_from_the_requests_sampler_is_caught():
    assert caught(OwnNumbers)


def test_turns_that_share_random_numbers_are_caught(monkeypatch):
    new = Sampler.__init__
    alike = lambda self, request, device, prompt_ids, contract: new(self, request, device, (), contract)  # noqa: E731
    monkeypatch.setattr(Sampler, "__init__", alike)
    monkeypatch.setattr(Request, "turn_seed", property(lambda self: self.seed))
    assert not follows_the_law(law_of(llama()), V, assistant(), **TURNS)
    assert not follows_the_law(law_of(llama()), V, assistant(), **THREE)


def confidences(grown: RememberedBranches) -> list[float]:
    """Of the first and second positions after some texts."""
    found = []
    for ids in ([*PROMPT, 1], [*PROMPT, 0, 3], [*PROMPT, 2]):
        grown.root(ids)
        found += grown.confidence.tolist()
        grown.grow([1], [0])
        found += grown.confidence.tolist()
    return found


def test_drafts_that_end_by_their_confidence_follow_the_targets_law(tmp_path):
    grown = dspark(tmp_path)
    threshold = median(confidences(grown))  # about half the drafts end early
    assert follows_the_law(law_of(llama()), V, chain(grown, V), stop_below=threshold, temperature=1.0)


class AfterTheToken(ChainDrafter):
    """Drops a token by what it is: one that the drafter itself finds unlikely."""

    def propose(self, ids, k, stop_below, sampler):
        draft = super().propose(ids, k, 0.0, sampler)
        n = next((i for i, q in enumerate(draft.q) if q < 0.3), len(draft.q))
        return replace(draft, ids=draft.ids[:n], q=draft.q[:n], probabilities=draft.probabilities[:n]) if n else NOTHING


def test_a_token_that_is_dropped_for_what_it_is_is_caught(tmp_path):
    grown = dspark(tmp_path)
    wrong = lambda target: AfterTheToken(grown, V, ())  # noqa: E731
    assert not follows_the_law(law_of(llama()), V, wrong, draws=500, temperature=1.0)


exact = verify.speculative_sampling


def outcome(draft, p, noise, n: int) -> torch.Tensor:
    """Of a rule that accepts n tokens, and samples the target's own from p."""
    return torch.tensor([n, int(noise.choose(whole(p[n : n + 1]))), 0, 1, *[0.0] * len(draft.ids)])


def all_accepted(draft, p, noise, complete):
    return outcome(draft, p, noise, len(draft.ids))


def typical(draft, p, noise, complete):
    """Medusa's: a draft token is kept where the target finds it likely enough."""
    likely = [float(p[i, id_]) > 0.2 for i, id_ in enumerate(draft.ids)]
    n = likely.index(False) if False in likely else len(likely)
    return outcome(draft, p, noise, n)


def redrawn(draft, p, noise, complete):
    """From p, and not from what p has over q."""
    return outcome(draft, p, noise, int(exact(draft, p, noise, complete)[0]))


class ToldAsDrawn(AssistantDrafter):
    """Drafts the likeliest tokens, and tells q as if they had been drawn."""

    def propose(self, ids, k, stop_below, sampler):
        draft = super().propose(ids, k, stop_below, sampler)
        return replace(draft, ids=draft.probabilities.argmax(dim=-1).tolist()) if draft.ids else draft


MIN_P = dict(temperature=1.0, min_p=0.7)


@pytest.mark.parametrize("way", ["chain", "tree"])
def test_min_p_is_followed_and_a_drafter_or_a_target_without_it_is_caught(way, monkeypatch):
    new_drafter = assistant() if way == "chain" else tree(mtp(), V)
    assert follows_the_law(law_of(llama()), V, new_drafter, **MIN_P)
    monkeypatch.setattr(Sampler, "distributions", lambda self, scores: whole(scores.softmax(dim=-1)))
    assert not follows_the_law(law_of(llama()), V, new_drafter, **MIN_P)


def caught(kind=AssistantDrafter) -> bool:
    return not follows_the_law(law_of(llama()), V, assistant(kind), draws=500, temperature=2.0)


def test_the_exact_rule_is_not_caught():
    assert not caught()


@pytest.mark.parametrize("rule", [all_accepted, typical, redrawn])
def test_a_wrong_rule_is_caught(rule, monkeypatch):
    monkeypatch.setitem(verify.RULES, "token", rule)
    assert caught()


def test_a_wrong_q_is_caught():
    assert caught(ToldAsDrawn)
