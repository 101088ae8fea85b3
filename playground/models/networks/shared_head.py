"""What networks share that draft over the target's embedding and head: what they read of a place, and of the head the
rows of a reduced vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.cpu.layout import by_columns
from playground.models.cpu.packed import PackedLinear


class SharedHead(nn.Module):
    """Args:
    target: whose embedding and head are used. Its weights are shared, not copied.
    draft_ids: (draft vocabulary,), the token ids that its logits are for.
    """

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__()
        config = target.config.get_text_config(decoder=True)
        like = {"eps": 1e-5, "dtype": target.dtype, "device": target.device}
        self.vocab_size, self._dtype = config.vocab_size, target.dtype
        self.norm_embedding = nn.RMSNorm(config.hidden_size, **like)
        self.norm_hidden = nn.RMSNorm(config.hidden_size, **like)
        self.register_buffer("draft_ids", draft_ids.to(target.device).long())
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # no submodule: not saved, not trained
        object.__setattr__(self, "_target_head", target.get_output_embeddings())
        object.__setattr__(self, "_head", _part(self._target_head, self.head_rows(self.draft_ids)))

    def joined(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Tokens (…,) and the hidden states one place before them (…, width) to (…, 2 width): both normed."""
        embedding = self._embedding(ids).detach().to(hidden.dtype)
        return torch.cat([self.norm_embedding(embedding), self.norm_hidden(hidden)], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, width) to (…, draft vocabulary): column j is for the token draft_ids[j]."""
        return self._head(hidden)

    def head_rows(self, ids: Tensor) -> Tensor:
        """(tokens,) to (tokens, width): the target's head for those tokens, in the draft vocabulary or not."""
        return self._target_head.weight.detach()[ids].to(self._dtype)


def _part(head: nn.Module, rows: Tensor) -> nn.Module:
    """A head with those rows alone, which keeps them as the whole one does."""
    part = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    packs = isinstance(head, PackedLinear)
    part.weight = nn.Parameter(rows if packs else by_columns(rows), requires_grad=False)
    return PackedLinear(part) if packs else part
