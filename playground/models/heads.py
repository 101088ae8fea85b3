"""Parallel heads: several future tokens from one pass over the target's last hidden state.

Medusa (Cai et al. 2024) and independent heads for several tokens (Gloeckle et al. 2024). Unlike Medusa's, these see
the token that the target has just chosen: with its embedding and the hidden state before it, head s proposes the token
s + 1 places on. No head knows what another one proposes. Embedding and head matrix are the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class ParallelHeads(nn.Module):
    """Args:
    target: whose embedding and head are used; shared, not copied.
    draft_ids: (draft vocabulary,), the token ids that can be drafted.
    """

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor, heads: int) -> None:
        super().__init__()
        width = target.config.get_text_config(decoder=True).hidden_size
        like = {"dtype": target.dtype, "device": target.device}
        self.norm_embedding = nn.RMSNorm(width, eps=1e-5, **like)
        self.norm_hidden = nn.RMSNorm(width, eps=1e-5, **like)
        self.proj = nn.Linear(2 * width, 2 * width, **like)
        self.count = heads
        self.heads = nn.Linear(2 * width, heads * width, bias=False, **like)
        self.vocab_size = target.config.get_text_config(decoder=True).vocab_size
        self.register_buffer("draft_ids", draft_ids.to(target.device).long())
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # no submodule: not saved, not trained
        self._head = target.get_output_embeddings().weight.detach()[self.draft_ids]

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Args:
            ids: (…,), the tokens at places 1 and on.
            hidden: (…, width), the target's hidden states at places 0 and on.

        Returns:
            (…, heads, draft vocabulary), logits for the places 2 and on.
        """
        embedding = self._embedding(ids).detach().to(hidden.dtype)
        both = torch.cat([self.norm_embedding(embedding), self.norm_hidden(hidden)], dim=-1)
        mixed = both + nn.functional.silu(self.proj(both))
        return nn.functional.linear(self.heads(mixed).unflatten(-1, (-1, hidden.shape[-1])), self._head)
