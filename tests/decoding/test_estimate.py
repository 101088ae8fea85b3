"""Drafts after many positions of a text at once are those of decoding, and the estimate counts them as by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from playground.backends.local import LocalBackend
from playground.decoding import estimate
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.doctor import DoctorOptions
from playground.lane import LOCAL, Lane, assisted_lane, label, standard_lane
from playground.metrics.drafts import Counts, add_counts
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair, ModelStore
from playground.presets import custom_pair, load_pairs
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
    pair = custom_pair("t", None) if kind in estimate.LOOKUPS else custom_pair("t", "d", kind)
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
    assert estimate.of_assistant(MODEL, V + 8, [3, V + 2, 5], [2, 3], 4) == [[], []]


@pytest.mark.parametrize("kind", ["ngram", "suffix", "mtp", "heads", "assistant", "dflash", "dspark", "domino"])
def test_over_the_target_s_own_text_the_rounds_are_those_of_decoding(kind, tmp_path):
    lane, of = Lane("x", "t", kind, lookahead=4), models(kind, tmp_path)
    for prompt in prompts(4):
        rounds = rounds_of(MODEL, built(of, kind, lookahead=4), prompt, ends=frozenset())
        counts = estimate.counts(of, lane, GREEDY, prompt, ids_of(rounds))
        assert counts.rounds_reached[0] == len(rounds)
        assert sum(counts.rounds_accepted) == sum(len(it.accepted) for it in rounds)
        assert counts.tokens_per_pass == pytest.approx(len(ids_of(rounds)) / len(rounds))


def over(text: str, choices: str) -> Counts:
    """Prompt lookup with three tokens, over a text of letters after its first one, of a target that chooses so."""
    ids, chosen = [ord(it) for it in text], [ord(it) for it in choices]
    read = estimate._Read(ids, 1, dict(enumerate(chosen, start=1)), {}, 128)
    return estimate._counted(read, Lane("x", "t", "ngram", lookahead=3), None, GREEDY)


def test_a_round_starts_after_the_token_that_the_target_added_to_the_one_before():
    counts = over("xabcabcab", "abcabcabc")
    assert (counts.rounds_reached, counts.rounds_accepted) == ((5, 1, 1), (1, 1, 1)), "x a b c, abc a, b: no room"
    assert (counts.reached[0], counts.accepted[0]) == (8, 4), "drafts at four positions would be right"
    assert counts.tokens_per_pass == pytest.approx(1 + 3 / 5)
    assert counts.gains == pytest.approx([1 / 5] * 3)


def test_where_the_text_is_not_the_target_s_choice_a_draft_is_judged_up_to_there():
    own, another = over("xababab", "abababa"), over("xababzb", "abababa")  # instead of z the target would write a
    assert (own.rounds_reached, own.rounds_accepted) == ((4, 1, 1), (1, 1, 0)), "the text ends"
    assert (another.rounds_reached, another.rounds_accepted) == ((5, 1, 0), (1, 1, 0)), "b and a, then z and b"
    assert (own.agreement, another.agreement) == (1, 5 / 6)
    assert another.gains == pytest.approx([1 / 5] * 3), "nothing is known of a third token: as the second"


def test_drafts_of_a_long_text_are_made_in_parts(monkeypatch, tmp_path):
    lane, of = Lane("x", "t", "mtp", lookahead=3), models("mtp", tmp_path)
    answer = generated(MODEL, [3, 4, 5])
    whole = estimate.counts(of, lane, GREEDY, [3, 4, 5], answer)
    monkeypatch.setattr(estimate, "ROWS", 4)
    assert estimate.counts(of, lane, GREEDY, [3, 4, 5], answer) == whole


def test_counts_of_texts_are_added_up():
    counts = Counts((10, 5, 2), (5, 2, 0), (4, 2, 1), (2, 1, 1), 8, 10)
    assert counts.tokens_per_pass == pytest.approx(1 + 1 / 2 + 1 / 4 + 1 / 4)
    twice = add_counts([counts, counts])
    assert twice == Counts((20, 10, 4), (10, 4, 0), (8, 4, 2), (4, 2, 2), 16, 20)
    assert twice.tokens_per_pass == counts.tokens_per_pass
    assert replace(counts, rounds_reached=(0,), rounds_accepted=(0,)).tokens_per_pass == 1


@pytest.mark.slow
@pytest.mark.starter
def test_the_estimate_for_the_starter_is_what_decoding_gives():
    """Of decoding with the same constant lookahead, within 5 %: the CPU engine rounds weights and heads of its own."""
    pair, kinds = load_pairs()[0]["starter"], ("ngram", "suffix", "mtp", "eagle3", "assistant", "dflash", "heads")
    backend = LocalBackend(ModelStore(), pair, "auto", "cpu")
    lanes = [assisted_lane(pair, kind, 5, policy="constant") for kind in kinds]
    _, questions = DoctorOptions(max_new_tokens=64).read()
    result = suite.run(standard_lane(pair), lanes, questions[:3], {LOCAL: backend}, Watch())
    for lane in lanes:
        models = backend.models(lane)
        traces = [it for it in result.traces if it.lane.drafter == lane.drafter]
        found = [estimate.counts(models, lane, GREEDY, it.prompt_ids, it.token_ids) for it in traces]
        decoded = result.of(label(lane)).mean_accepted_length
        assert add_counts(found).tokens_per_pass == pytest.approx(decoded, rel=0.05), lane.drafter
