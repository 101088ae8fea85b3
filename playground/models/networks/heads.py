"""Parallel heads: several future tokens from one pass over the target's last hidden state.

Medusa (Cai et al. 2024) and independent heads for several tokens (Gloeckle et al. 2024). Unlike Medusa's, these see
the token that the target has just chosen: with its embedding and the hidden state before it, head s proposes the token
s + 1 places on. No head knows what another one proposes. Embedding and head matrix are the target's.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.networks.shared_head import SharedHead


class ParallelHeads(SharedHead):
    """Arguments as for `SharedHead`; `heads`: the places that are drafted."""

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor, heads: int) -> None:
        super().__init__(target, draft_ids)
        width = target.config.get_text_config(decoder=True).hidden_size
        like = {"dtype": target.dtype, "device": target.device}
        self.proj = nn.Linear(2 * width, 2 * width, **like)
        self.count = heads
        self.heads = nn.Linear(2 * width, heads * width, bias=False, **like)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Args:
            ids: (…,), the tokens at places 1 and on.
            hidden: (…, width), the target's hidden states at places 0 and on.

        Returns:
            (…, heads, width), hidden states that the tokens at places 2 and on are read from.
        """
        both = self.joined(ids, hidden)
        mixed = both + nn.functional.silu(self.proj(both))
        return self.heads(mixed).unflatten(-1, (-1, hidden.shape[-1]))
