"""EAGLE-3, DFlash and DSpark on a tiny target: acceptance rises, and what is written is what the loaders draft with."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.eagle3 import Eagle3Branches
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.distil.data import batch_of, load_answers
from playground.distil.recipe import PUBLISHED, train_drafter, write_answers
from playground.distil.train import Plan
from playground.errors import PlaygroundError
from playground.lane import Request
from playground.models.load import LoadedModel
from playground.models.networks.eagle3 import load_eagle3
from tests.tiny import small_llama

PLAN = Plan(tokens=12_000, batch=512, learning_rate=5e-3, evaluations=2)


@pytest.fixture(scope="module")
def deep(tiny_tokenizer) -> LoadedModel:
    """Eight layers, which a drafter can read three of; like the fixture `target` in all else."""
    model = small_llama(tiny_tokenizer, room=1024, initializer_range=0.1, layers=8)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.6)
    return LoadedModel(model, tiny_tokenizer, "deep", "made in a test")


@pytest.fixture(scope="module")
def answers(deep, tmp_path_factory):
    from playground.distil import prompts

    folder = tmp_path_factory.mktemp("deep-work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "TEXT_CHARACTERS", (600,))
        write_answers(deep, folder, tokens=6_000, batch=32, seed=0)
    return folder


@pytest.fixture(scope="module")
def published(deep, answers, tmp_path_factory):
    out = tmp_path_factory.mktemp("published")
    return {
        kind: (out / kind, train_drafter(kind, deep, answers, out / kind, PLAN, vocabulary=200)) for kind in PUBLISHED
    }


@pytest.mark.parametrize("kind", PUBLISHED)
def test_acceptance_rises(published, kind):
    _, log = published[kind]
    assert log[-1]["accepted"][0] > max(0.3, log[0]["accepted"][0])
