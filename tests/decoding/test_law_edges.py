"""Sampled runs follow the target's law where a text crosses an edge: the seam of LongRoPE's factors, and the end of a
drafter's context. On the real runners, over four tokens."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from playground.decoding import verify
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.lane import Request
from tests.decoding.law import agrees, continuations, law_of
from tests.decoding.real import SIZES, NewDrafter, ids_of, over, rounds_of
from tests.decoding.test_context import CONTEXT, short
from tests.decoding.test_law import all_accepted
from tests.decoding.test_longrope import SEAM, phi3
from tests.decoding.test_trained_drafters import network_for
from tests.selection import selected

V = 4
FEW = dict(vocab_size=V, eos_token_id=None, pad_token_id=None, initializer_range=0.6)
HOT = dict(temperature=1.5)


@cache
def longrope() -> PreTrainedModel:
    return phi3(**FEW)


@cache
def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | FEW, num_hidden_layers=2)).eval()


def assistant(target: PreTrainedModel, **config: object) -> NewDrafter:
    """One that is near the target: many of its drafts are accepted, and many are not."""
    torch.manual_seed(1)
    model = type(target)(type(target.config)(**target.config.to_dict() | config)).eval()
    with torch.no_grad():
        for mine, its in zip(model.parameters(), target.parameters(), strict=True):
            mine.copy_(its + its.std() * torch.randn_like(its) if its.dim() > 1 else its)
    return lambda cached: AssistantDrafter(EagerRunner(model), V, ())


def follow(model: PreTrainedModel, new_drafter: NewDrafter, length: int, draws: int) -> bool:
    """Whether two tokens after a prompt of this length follow the law."""
    prompt = torch.randint(0, V, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    chances = continuations(law_of(model), Sampler(Request("x", **HOT), model.device), prompt, length=2)
    counts = Counter(
        tuple(ids_of(rounds_of(model, new_drafter, prompt, 2, 2, ends=(), seed=seed, **HOT))) for seed in range(draws)
    )
    return agrees([counts[text] for text in chances], torch.tensor(list(chances.values())))


SEAMS = [(n, way, 400) for n in (2, 1, 0, -1) for way in ("assistant", "ngram")]
QUICK = (1, "assistant", 150)


@pytest.mark.parametrize(("before", "way", "draws"), selected([QUICK, *SEAMS], [QUICK]))
def test_across_the_seam_of_longrope(before, way, draws):
    new_drafter = assistant(longrope()) if way == "assistant" else lambda target: NgramDrafter()
    assert follow(longrope(), new_drafter, SEAM - before, draws)


@pytest.mark.slow
@pytest.mark.parametrize("before", [2, 1, 0, -1])
def test_past_a_drafters_context(before):
    """Prompts that end before it, at it and beyond it."""
    network = network_for("mtp", llama(), torch.arange(V))
    for new_drafter in (assistant(llama(), max_position_embeddings=CONTEXT), over(short(network))):
        assert follow(llama(), new_drafter, CONTEXT - before, 400)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "length"), [(longrope, SEAM - 2), (longrope, SEAM + 1), (llama, CONTEXT - 2)])
def test_drafts_accepted_unseen_there_are_caught(model, length, monkeypatch):
    monkeypatch.setitem(verify.RULES, "token", all_accepted)
    assert not follow(model(), assistant(model()), length, 400)
