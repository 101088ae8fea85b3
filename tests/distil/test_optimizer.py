"""Which weights Muon moves, and which AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from playground.errors import PlaygroundError
from playground_distil.train import MuonAndAdamW

RATE = 0.01


def steep(shape: torch.Size) -> torch.Tensor:
    """A gradient ten times as long in one direction as in another."""
    u, s, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    return u * torch.linspace(1, 0.1, len(s)) @ v


def test_matrices_move_equally_far_in_all_directions_and_all_else_by_entries():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    config.tie_word_embeddings = True
    model = LlamaForCausalLM(config)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = steep(weight.shape) if weight.ndim == 2 else torch.randn_like(weight)
    MuonAndAdamW(model, RATE, weight_decay=0.0).step()
    moved = {name: weight.detach() - before[name] for name, weight in model.named_parameters()}
    for name, step in moved.items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear):
            along = torch.linalg.svdvals(step)
            assert along.min() > along.max() / 2, name
        else:
            assert step.abs().allclose(torch.tensor(RATE), rtol=1e-3), name


def test_a_torch_without_muon_is_named(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(PlaygroundError, match=r"torch 2\.9"):
        MuonAndAdamW(nn.Linear(2, 2), RATE, weight_decay=0.0)
