"""A target that a drafter can learn in seconds: what comes next follows mostly from the last token."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground.models.load import LoadedModel


@pytest.fixture(scope="session")
def target(tiny_tokenizer) -> LoadedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tiny_tokenizer.eos_token_id,
        pad_token_id=tiny_tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.6)
    return LoadedModel(model, tiny_tokenizer, "tiny", "made in a test")


@pytest.fixture(scope="session")
def work(target, tmp_path_factory):
    """A folder with the target's answers."""
    from playground.distil.recipe import write_answers

    folder = tmp_path_factory.mktemp("work")
    write_answers(target, folder, tokens=6_000, batch=32, seed=0)
    return folder
