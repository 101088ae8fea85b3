"""Muon for the matrices between hidden states, AdamW for norms and embeddings: both step together.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) moves a matrix equally far in each of its directions.
Scaled as in Liu et al. 2025 (arXiv 2502.16982) it takes AdamW's learning rate.
"""

from __future__ import annotations

import torch
from torch import nn

from playground.errors import PlaygroundError


class MuonAndAdamW:
    """Raises:
    PlaygroundError: a torch before 2.9, which has no Muon.
    """

    def __init__(self, module: nn.Module, learning_rate: float, weight_decay: float) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise PlaygroundError(f"Training takes torch 2.9 or newer, for its Muon; this is {torch.__version__}.")
        embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in embeddings]
        others = [weight for weight in trained if weight.ndim != 2 or id(weight) in embeddings]
        self._both = [
            torch.optim.Muon(matrices, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay),
        ]

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self._both:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        for optimizer in self._both:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self._both:
            optimizer.step()

    def state_dict(self) -> list[dict]:
        return [optimizer.state_dict() for optimizer in self._both]

    def load_state_dict(self, states: list[dict]) -> None:
        for optimizer, state in zip(self._both, states, strict=True):
            optimizer.load_state_dict(state)
