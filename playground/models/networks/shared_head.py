"""Base of the networks that draft with the target's embedding and with rows of its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.cpu.layout import by_columns
from playground.models.cpu.packed import PackedLinear


class SharedHead(nn.Module):
    """Args:
    target: its embedding and head are used; shared, not copied.
    draft_ids: (draft vocabulary,), the token id of each column of the logits.
    """

    draft_ids: Tensor
    _embedding: nn.Embedding
    _target_head: nn.Linear | PackedLinear
    _head: nn.Module

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__()
        config = target.config.get_text_config(decoder=True)
        like: dict[str, Any] = {"eps": 1e-5, "dtype": target.dtype, "device": target.device}
        self.vocab_size, self._dtype = config.vocab_size, target.dtype
        self.norm_embedding = nn.RMSNorm(config.hidden_size, **like)
        self.norm_hidden = nn.RMSNorm(config.hidden_size, **like)
        self.register_buffer("draft_ids", draft_ids.to(target.device).long())
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # not a submodule: not saved, not trained
        object.__setattr__(self, "_target_head", target.get_output_embeddings())
        object.__setattr__(self, "_head", _part(self._target_head, self.head_rows(self.draft_ids)))

    def joined(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Tokens (…,) and the hidden states one position before them (…, width), both normed, to (…, 2 width)."""
        embedding = self._embedding(ids).detach().to(hidden.dtype)
        return torch.cat([self.norm_embedding(embedding), self.norm_hidden(hidden)], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, width) to (…, draft vocabulary): column j is token draft_ids[j]."""
        return self._head(hidden)

    def head_rows(self, ids: Tensor) -> Tensor:
        """(tokens,) to (tokens, width): rows of the target's head for any tokens of its vocabulary."""
        return self._target_head.weight.detach()[ids].to(self._dtype)


def _part(head: nn.Module, rows: Tensor) -> nn.Module:
    """A head of these rows only, packed if the whole head is."""
    part = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    packs = isinstance(head, PackedLinear)
    part.weight = nn.Parameter(rows if packs else by_columns(rows), requires_grad=False)
    return PackedLinear(part) if packs else part
