"""Parallel heads: several future tokens from one pass over the target's last hidden state.

Medusa (Cai et al. 2024) and independent heads for several tokens (Gloeckle et al. 2024). Unlike Medusa's, these read
the token that the target has just chosen: from its embedding and the hidden state before it, head s, counted from 0,
proposes the token s + 1 positions later. The heads do not see each other's proposals. Embedding and head matrix are
the target's.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.networks.shared_head import SharedHead


class ParallelHeads(SharedHead):
    """Arguments: those of `SharedHead`, and `heads`, the number of positions that are drafted."""

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor, heads: int) -> None:
        super().__init__(target, draft_ids)
        width = target.config.get_text_config(decoder=True).hidden_size
        like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}
        self.proj = nn.Linear(2 * width, 2 * width, **like)
        self.count = heads
        self.heads = nn.Linear(2 * width, heads * width, bias=False, **like)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Args:
            ids: (…,), the tokens from position 1 on.
            hidden: (…, width), the target's hidden states from position 0 on.

        Returns:
            (…, heads, width), hidden states from which the tokens from position 2 on are predicted.
        """
        both = self.joined(ids, hidden)
        mixed = both + nn.functional.silu(self.proj(both))
        return self.heads(mixed).unflatten(-1, (-1, hidden.shape[-1]))
