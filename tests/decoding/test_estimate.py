"""Drafts after many positions of a text at once are those of decoding, and the estimate counts them as by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from playground.decoding import estimate
from playground.decoding import estimate as drafts_at
from playground.decoding.drafters.lookup import NgramDrafter
from playground.lane import Lane
from playground.metrics.drafts import Counts, add_counts
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from tests.decoding.fakes import GREEDY
from tests.decoding.real import V, built, generated, ids_of, llama, prompts, rounds_of
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load
from tests.models.networks.test_eagle3 import loaded
from tests.published import dflash_base

MODEL = llama(0, 3)
SPARK = dict(kind="dspark", markov="rnn", confidence="markov", ids=list(range(0, V, 2)))
WINDOWS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=7)


def drafting(kind: str, tmp_path) -> LoadedModel | LoadedDrafter | None:
    torch.manual_seed(7)
    if kind == "heads":
        return LoadedDrafter(ParallelHeads(MODEL, torch.arange(V), 4).eval(), "d", "w")
    if kind == "mtp":
        layer = MtpLayer(MODEL, torch.arange(V)).eval()
        layer.start_from(MODEL)
        return LoadedDrafter(layer, "d", "w")
    if kind == "assistant":  # the target with other last layers: right now and then
        return loaded(perturbed())
    if kind == "dspark":
        return load(write_block(tmp_path / "d", MODEL, **SPARK), MODEL)
    if kind == "domino":
        return load(write_block(tmp_path / "d", MODEL, layout="z-lab", kind="domino"), MODEL)
    if kind == "dflash":
        return LoadedDrafter(DFlash(dflash_base(MODEL, **WINDOWS), MODEL, frozenset()), "d", "w")
    return None


def perturbed() -> PreTrainedModel:
    model = llama(0, 3)
    with torch.no_grad():
        for weight in model.model.layers[-1].parameters():
            weight.mul_(0.4)
    return model


def models(kind: str, tmp_path) -> LoadedPair:
    pair = custom_pair("t", None) if kind == "ngram" else custom_pair("t", "d", kind)
    return LoadedPair(pair, loaded(MODEL), drafting(kind, tmp_path))


@pytest.mark.parametrize("kind", ["mtp", "heads", "assistant", "dflash", "dspark", "domino"])
def test_the_drafts_at_all_positions_are_those_of_decoding(kind, tmp_path):
    """The text is the target's own, so that every round of decoding begins at one of the positions."""
    lane, of = Lane("x", "t", kind, lookahead=4), models(kind, tmp_path)
    assert estimate.possible(of, lane)
    compared, accepted = 0, 0
    for prompt in prompts(4):
        rounds = rounds_of(MODEL, built(of, kind, lookahead=4), prompt, ends=frozenset())
        text = [*prompt, *ids_of(rounds)]
        ends = [len(prompt) + sum(len(it.tokens) for it in rounds[:i]) for i in range(1, len(rounds))]
        module = of.drafting.module
        with torch.inference_mode():
            read = estimate._read(of, GREEDY, text, [], () if kind == "assistant" else module.layers)
            drafts = estimate._drafts(read, lane, module, GREEDY, ends)
        for draft, round_ in zip(drafts, rounds[1:], strict=True):
            assert draft[: len(round_.drafted)] == [token.id for token in round_.drafted]
            compared += len(round_.drafted)
            accepted += len(round_.accepted)
        assert estimate.counts(of, lane, GREEDY, prompt, text[len(prompt) :]).agreement == 1
    assert compared > 60 and accepted


def test_a_tree_and_a_network_whose_positions_mix_are_not_estimated(tmp_path):
    for drafter in ("tree", "composite", "dflash2", "peagle"):
        assert not estimate.possible(models("mtp", tmp_path), Lane("x", "t", drafter))
    assert not estimate.possible(models("ngram", tmp_path), Lane("x", "t", "assistant"))


def test_an_assistant_drafts_nothing_after_an_id_that_it_lacks():
    assert drafts_at.of_assistant(MODEL, V + 8, [3, V + 2, 5], [2, 3], 4) == [[], []]


def test_an_estimate_over_the_target_s_own_text_is_what_a_count_by_hand_gives(tmp_path):
    lane, of = Lane("x", "t", "ngram", lookahead=3), models("ngram", tmp_path)
    prompt = [3, 4, 5, 3]
    answer = generated(MODEL, prompt)
    counts = estimate.counts(of, lane, GREEDY, prompt, answer)

    text, accepted = [*prompt, *answer], 0
    for start in range(len(prompt) + 1, len(text)):
        draft = NgramDrafter().propose(text[:start], 3, 0.0, GREEDY).ids
        accepted += bool(draft) and draft[0] == text[start]
    assert (counts.reached[0], counts.accepted[0]) == (len(answer) - 1, accepted)


def test_tokens_per_pass_is_the_sum_of_what_survives():
    counts = Counts((10, 5, 2), (5, 2, 0), 8, 10)
    assert counts.tokens_per_pass == pytest.approx(1 + 0.5 + 0.5 * 0.4)
    assert add_counts([counts, counts]).tokens_per_pass == counts.tokens_per_pass
    assert replace(counts, reached=(0,), accepted=(0,)).tokens_per_pass == 1
