"""PARD models of random weights on transformers' real classes: loaded from folders, drafting in one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from playground.decoding.drafters.branches import branches_of
from playground.decoding.drafters.build import Setup, build_drafter
from playground.decoding.drafters.parallel import DRAFTS
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.factory import Runners
from playground.decoding.runners.static import StaticRunner
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.errors import PlaygroundError
from playground.lane import Lane, Request
from playground.models.store import LoadedPair, ModelStore
from playground.presets import custom_pair, kind_of
from tests.decoding.law import agrees, continuations, law_of
from tests.tiny import small_llama

MASK = 5
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def pard_folder(folder: Path, tokenizer, **config: object) -> str:
    torch.manual_seed(8)
    model = small_llama(tokenizer, **{"pard_token": MASK, "initializer_range": 0.3, **config})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def models(tmp_path, tiny_tokenizer) -> LoadedPair:
    """A PARD model for a target that is close to it, so that some drafts are accepted."""
    folder = pard_folder(tmp_path / "pard", tiny_tokenizer)
    target = small_llama(tiny_tokenizer, initializer_range=0.3)
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    with torch.no_grad():
        for key, weight in target.state_dict().items():
            weight.copy_(state[key] + 0.01 * torch.randn_like(weight))
    target.save_pretrained(tmp_path / "target")
    tiny_tokenizer.save_pretrained(tmp_path / "target")
    return loaded(tmp_path / "target", folder)


def loaded(target: Path, folder: str, drafter: str = "pard") -> LoadedPair:
    pair = custom_pair(str(target), folder, drafter)
    return ModelStore().get(pair, drafter=drafter, dtype="float32", device="cpu", progress=lambda step: None)


def setup(models: LoadedPair, target: EagerRunner, way: str = "pard") -> Setup:
    return Setup(models, Lane(way, "tiny", way), target)


def test_a_pass_gives_the_logits_after_text_and_mask_tokens(models):
    model = models.drafting.model
    branches = branches_of(setup(models, EagerRunner(models.target.model)))
    for text in (TEXT, [*TEXT, 7], [*TEXT, 7, 8, 3, 5]):  # what was drafted before leaves nothing
        with torch.inference_mode():
            branches.root(text)
            wanted = model(torch.tensor([[*text, *[MASK] * (DRAFTS - 1)]])).logits[0, -DRAFTS:]
        torch.testing.assert_close(branches.positions, wanted, rtol=1e-3, atol=1e-3)
        branches.end()


@pytest.mark.parametrize("way", ["pard", "tree", "composite"])
def test_greedy_equals_generate(models, way):
    model, decisions = models.target.model, []
    for prompt in (TEXT, [7, 7], [9, 2, 6, 5, 3]):
        target, sampler = EagerRunner(model), Sampler(Request("x"), model.device)
        drafter = build_drafter(models, Lane(way, "tiny", way), target)
        detokenizer = Detokenizer(models.target.tokenizer, prompt)
        rounds = list(decode(target, drafter, Lookahead(6), sampler, detokenizer, prompt, 24, models.target.eos_ids))
        ids = torch.tensor([prompt])
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert [token.id for round_ in rounds for token in round_.tokens] == plain[0, len(prompt) :].tolist()
        decisions += [token.decision for round_ in rounds for token in round_.drafted]
    assert {"accepted", "rejected"} <= set(decisions)


@pytest.mark.parametrize("way", ["pard", pytest.param("tree", marks=pytest.mark.slow)])
def test_sampled_runs_follow_the_targets_law(models, way):
    """Few tokens are possible, so that all continuations can be counted."""
    model, sampling = models.target.model, dict(temperature=0.7, top_k=2, top_p=0.9)
    law = law_of(model)
    prompt = TEXT
    chances = continuations(law, Sampler(Request("x", **sampling), model.device), prompt)
    counts = dict.fromkeys(chances, 0)
    for seed in range(200):
        target, sampler = EagerRunner(model), Sampler(Request("x", seed=seed, **sampling), model.device)
        drafter = build_drafter(models, Lane(way, "tiny", way), target)
        detokenizer = Detokenizer(models.target.tokenizer, prompt)
        rounds = decode(target, drafter, Lookahead(2), sampler, detokenizer, prompt, 3, ())
        counts[tuple(token.id for round_ in rounds for token in round_.tokens)] += 1
    assert agrees(list(counts.values()), torch.tensor(list(chances.values())))


def test_a_static_cache_drafts_the_same(models):
    drafted = []
    for runners in (Runners(), Runners(compiled=True, room=64)):
        grown = branches_of(replace(setup(models, EagerRunner(models.target.model)), runners=runners))
        for text in (TEXT, [*TEXT, 7], [*TEXT, 7, 8, 3, 5]):
            with torch.inference_mode():
                grown.root(text)
            drafted.append(grown.positions.clone())
            grown.end()
    torch.testing.assert_close(drafted[:3], drafted[3:], rtol=1e-3, atol=1e-3)
    assert type(grown._model) is StaticRunner


def test_a_folder_is_known_by_its_mask_token_and_grows_trees(models, tmp_path):
    assert kind_of(str(tmp_path / "pard")) == "pard"
    target = EagerRunner(models.target.model)
    assert type(build_drafter(models, Lane("t", "tiny", "tree"), target)) is TreeDrafter


def test_near_the_end_of_the_models_context_fewer_masks_are_fed(models):
    branches = branches_of(setup(models, EagerRunner(models.target.model)))
    limit = models.drafting.model.config.max_position_embeddings
    assert branches.context == limit
    for room, drafts in ((DRAFTS + 1, DRAFTS), (DRAFTS, DRAFTS), (3, 3), (1, 1)):
        assert len(branches.root([7] * (limit - room))) and len(branches.positions) == drafts
        branches.end()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (dict(pard_token=None), "no pard_token"),
        (dict(spd_type="pard2_dependent"), "as pard2_dependent"),
        (dict(pard_token=10_000), "is 10,000"),
    ],
    ids=str,
)
def test_what_is_no_known_pard_model_is_refused(config, sentence, tmp_path, tiny_folder, tiny_tokenizer):
    folder = pard_folder(tmp_path / "pard", tiny_tokenizer, **config)
    with pytest.raises(PlaygroundError) as refusal:
        loaded(tiny_folder, folder)
    assert sentence in str(refusal.value)
