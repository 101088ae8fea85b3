"""Where a text outgrows a drafter's context, nothing is drafted, the rounds say so, and the target's text comes out."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from playground.decoding import estimate
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.lane import Lane, Request
from playground.models.attention import context_of
from playground.models.load import LoadedDrafter
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import load_peagle
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.real import V, generated, ids_of, llama, over, rounds_of
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load
from tests.models.networks.test_eagle3 import load as load_eagle3
from tests.models.networks.test_eagle3 import loaded, write_head
from tests.models.networks.test_peagle import write as write_peagle
from tests.published import dflash_base

MODEL, PROMPT, CONTEXT = llama(0, 8), [3, 1, 4, 1, 5, 9], 14


def network(way: str, folder) -> torch.nn.Module:
    """With positions for CONTEXT tokens."""
    if way == "eagle3":
        return load_eagle3(write_head(folder, MODEL, [*range(V)], max_position_embeddings=CONTEXT), MODEL).network
    if way == "peagle":
        written = write_peagle(folder, MODEL)
        return short(load_peagle(written, loaded(MODEL), lambda step: None).network)
    if way == "dflash":
        return DFlash(dflash_base(MODEL, max_position_embeddings=CONTEXT), MODEL, frozenset())
    if way == "dspark":
        return short(load(write_block(folder, MODEL, kind="dspark", markov="vanilla"), MODEL).network)
    torch.manual_seed(7)
    layer = short(MtpLayer(MODEL, torch.arange(V)).eval())
    layer.start_from(MODEL)
    return layer


def short(network):
    network.config.max_position_embeddings = CONTEXT
    return network


def drafting(way: str, folder):
    if way == "assistant":
        return lambda target: AssistantDrafter(EagerRunner(short(llama(1, 1))), V, {V - 1})
    kind, *shape = way.split()
    tree = over(network(kind, folder), "tree" if shape else "chain")
    several = {"composite": CompositeDrafter, "adaptive": AdaptiveDrafter}.get("".join(shape))
    return (lambda target: several(NgramDrafter(30, 30), tree(target))) if several else tree


@pytest.mark.parametrize(
    "way",
    ["assistant", "mtp", "mtp tree", "mtp composite", "mtp adaptive", "eagle3", "eagle3 tree", "peagle", "dflash",
     "dflash tree", "dspark", "dspark tree"],
)  # fmt: skip
def test_nothing_is_drafted_past_the_drafters_context(way, tmp_path):
    rounds = rounds_of(MODEL, drafting(way, tmp_path / "d"), PROMPT)
    assert ids_of(rounds) == generated(MODEL, PROMPT)
    length, within = len(PROMPT), 0
    for round_ in rounds:
        assert length + max((len(b) for b in branches(round_)), default=0) <= CONTEXT or not round_.drafted
        assert (round_.past_context == CONTEXT) == (length >= CONTEXT) or way.endswith("adaptive")
        within += bool(round_.drafted)
        length += len(round_.tokens)
    assert within and (any(round_.past_context for round_ in rounds) or way.endswith("adaptive"))  # which may not try


def branches(round_) -> list[list[int]]:
    """The indices of the tokens on the branch that ends at each drafted token."""
    found: list[list[int]] = []
    for i, token in enumerate(round_.drafted):
        parent = i - 1 if token.parent is None else token.parent
        found.append([*(found[parent] if parent >= 0 else []), i])
    return found


@pytest.mark.parametrize("way", ["assistant", "mtp", "eagle3 tree", "dflash", "dspark"])
def test_of_later_turns_only_one_within_the_context_is_drafted(way, tmp_path):
    target = EagerRunner(MODEL)
    new_drafter = drafting(way, tmp_path / "d")
    drafter = new_drafter(target)

    def turn(prompt: list[int], target, drafter) -> tuple[list[int], list[list[int]]]:
        sampler, detokenizer = Sampler(Request("x"), target.device), Detokenizer(NumberTokenizer(), prompt)
        rounds = list(decode(target, drafter, Lookahead(3), sampler, detokenizer, prompt, 12, {V - 1}))
        return ids_of(rounds), [[token.id for token in round_.drafted] for round_ in rounds]

    first, _ = turn(PROMPT, target, drafter)
    for prompt, shared in (([*PROMPT, *first[:-1], 7], len(PROMPT) + len(first) - 1), ([*PROMPT, 8], len(PROMPT))):
        target.commit(drafter.rewind(min(shared, target.length)))
        again, drafted = turn(prompt, target, drafter)
        assert again == generated(MODEL, prompt, 12)
        assert any(drafted) == (len(prompt) < CONTEXT)


def test_an_estimate_counts_no_draft_past_the_context(tmp_path):
    drafter = LoadedDrafter(network("mtp", tmp_path), "d", "w")
    models = LoadedPair(custom_pair("t", "d", "mtp"), loaded(MODEL), drafter)
    answer = generated(MODEL, PROMPT)
    lane, sampler = Lane("x", "t", "mtp", lookahead=3), Sampler(Request("x"), MODEL.device)
    whole = estimate.counts(models, lane, sampler, PROMPT, answer)
    within = estimate.counts(models, lane, sampler, PROMPT, answer[: CONTEXT - len(PROMPT)])
    assert sum(whole.reached) > sum(within.reached) and whole.accepted[0] <= within.accepted[0] + 1


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SMALL = dict(num_hidden_layers=2, max_position_embeddings=64)


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (LlamaConfig(**SMALL), 64),
        (LlamaConfig(**SMALL, rope_parameters=YARN), 256),
        (LlamaConfig(**SMALL | dict(max_position_embeddings=256), rope_parameters=YARN), 256),
        (LlamaConfig(**SMALL | dict(max_position_embeddings=128), rope_parameters=LLAMA3), 128),
        (GPT2Config(n_positions=64, n_layer=2), 64),
        (MistralConfig(**SMALL, sliding_window=8), 64),
        (Qwen3Config(**SMALL, sliding_window=8, layer_types=["sliding_attention"] * 2), sys.maxsize),
        (Qwen3Config(**SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention"]), 64),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_the_context_is_that_of_the_positions_scaled_or_within_a_window(config, context):
    assert context_of(config) == context
