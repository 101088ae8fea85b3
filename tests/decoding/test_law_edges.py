"""Sampled runs follow the target's law where a text crosses an edge: the seam of LongRoPE's factors, and the end of a
drafter's context."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from playground.decoding import verify
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.lane import Request
from tests.decoding.law import LENGTH, agrees, continuations, law_of
from tests.decoding.real import V, ids_of, llama, over, rounds_of
from tests.decoding.test_context import CONTEXT, MODEL, network
from tests.decoding.test_law import redrawn
from tests.decoding.test_longrope import SEAM, model  # noqa: F401 (a fixture)
from tests.selection import selected

SAMPLED = dict(temperature=1.0, top_k=2)
DRAWS = 200


def near(model, **config):  # noqa: F811
    """An assistant whose drafts the target often accepts."""
    torch.manual_seed(1)
    copied = type(model)(type(model.config)(**model.config.to_dict() | config)).eval()
    with torch.no_grad():
        for mine, its in zip(copied.parameters(), model.parameters(), strict=True):
            mine.copy_(its + 0.2 * its.std() * torch.randn_like(its) if its.dim() > 1 else its)
    return copied


def follow(model, new_drafter, prompt: list[int]) -> bool:  # noqa: F811
    chances = continuations(law_of(model), Sampler(Request("x", **SAMPLED), model.device), prompt)
    counts = Counter(
        tuple(ids_of(rounds_of(model, new_drafter, prompt, 2, LENGTH, ends=(), seed=seed, **SAMPLED)))
        for seed in range(DRAWS)
    )
    return counts.keys() <= chances.keys() and agrees(
        [counts[text] for text in chances], torch.tensor(list(chances.values()))
    )


def prompt_of(length: int) -> list[int]:
    return torch.randint(1, V - 1, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize(
    ("before", "way"),
    selected([(n, way) for n in (3, 2, 1, 0, -1) for way in ("assistant", "ngram")], [(2, "assistant")]),
)
def test_across_the_seam_of_longrope(model, before, way):  # noqa: F811
    assistant = near(model)
    drafters = {
        "assistant": lambda target: AssistantDrafter(EagerRunner(assistant), V, ()),
        "ngram": lambda target: NgramDrafter(),
    }
    assert follow(model, drafters[way], prompt_of(SEAM - before))


def test_a_wrong_rule_at_the_seam_is_caught(model, monkeypatch):  # noqa: F811
    monkeypatch.setitem(verify.RULES, "token", redrawn)
    assistant = near(model)
    assert not follow(model, lambda target: AssistantDrafter(EagerRunner(assistant), V, ()), prompt_of(SEAM - 3))


@pytest.mark.parametrize(
    ("before", "way"),
    selected(
        [(n, way) for n in (3, 2, 1, 0, -1) for way in ("assistant", "mtp", "eagle3", "dflash", "dspark", "peagle")],
        [(2, "assistant")],
    ),
)
def test_past_a_drafters_context(before, way, tmp_path):
    """Prompts that end before it, at it and beyond it."""
    prompt = prompt_of(CONTEXT - before)
    if way == "assistant":
        target = llama(0, 2)
        assistant = near(target, max_position_embeddings=CONTEXT)
        assert follow(target, lambda cached: AssistantDrafter(EagerRunner(assistant), V, ()), prompt)
    else:
        assert follow(MODEL, over(network(way, tmp_path / "d")), prompt)
