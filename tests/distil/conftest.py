"""A target that a drafter can learn in seconds: what comes next follows mostly from the last token."""

from __future__ import annotations

import pytest
import torch

from playground.models.load import LoadedModel
from tests.tiny import small_llama


@pytest.fixture(scope="session")
def target(tiny_tokenizer) -> LoadedModel:
    model = small_llama(tiny_tokenizer, room=1024, initializer_range=0.1)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.6)
    return LoadedModel(model, tiny_tokenizer, "tiny", "made in a test")


@pytest.fixture(scope="session")
def deep(tiny_tokenizer) -> LoadedModel:
    """Eight layers, which a drafter can read three of; like the fixture `target` in all else."""
    model = small_llama(tiny_tokenizer, room=1024, initializer_range=0.1, layers=8)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.6)
    return LoadedModel(model, tiny_tokenizer, "deep", "made in a test")


@pytest.fixture(scope="session")
def work(target, tmp_path_factory):
    """A folder with the target's answers. Texts to work on are short: of the tiny tokenizer's tokens a long one has so
    many that little else would be learned from."""
    from playground_distil import collect
    from playground_distil.recipe import write_answers

    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "TEXT_CHARACTERS", (600,))
        write_answers(target, folder, tokens=3_000, batch=11, seed=0)
    return folder
