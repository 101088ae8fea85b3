"""Grouped-query attention on a CPU without copies of the keys and values.

transformers' `sdpa` repeats the key heads wherever there is a mask, which is what a GPU's kernels want: in a verify
pass that copies the whole KV cache once more.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

GROUPED = "grouped_sdpa"
OTHER_KINDS = ("softcap", "position_bias", "cache")  # of attention, which transformers' own function sees to


def grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
) -> tuple[Tensor, None]:
    """As transformers' `sdpa_attention_forward`: [B, H, n, D] queries over [B, G, m, D] keys to [B, n, H, D]."""
    if attention_mask is None or any(kwargs.get(kind) is not None for kind in OTHER_KINDS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    rows, heads, places, width = query.shape
    groups = key.shape[1]
    # The query heads of a group stand as so many places of one head, so that keys and values are read once.
    mask = attention_mask.expand(-1, -1, places, -1).repeat(1, 1, heads // groups, 1)
    grouped = query.reshape(rows, groups, -1, width)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling"))
    return out.view(rows, heads, places, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, grouped_sdpa)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def without_copies(model: PreTrainedModel, device: torch.device) -> None:
    """Lets a model that would attend by transformers' `sdpa` do so, where that pays."""
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)
