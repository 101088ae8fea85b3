"""Grouped-query attention on a CPU that reads each key and value once, in plain passes and verify passes alike.

transformers' `sdpa` repeats the key heads wherever there is a mask, which is what a GPU's kernels want: in a verify
pass that copies the whole KV cache once more. Without one, in a pass over a single token, torch's kernel reads the keys
of a group once for each of its query heads, a row at a time, and takes longer for one token than for several.
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
    rows, heads, places, width = query.shape
    prompt = attention_mask is None and places > 1  # causal, which the kernel itself does best
    if prompt or any(kwargs.get(kind) is not None for kind in OTHER_KINDS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    groups = key.shape[1]
    # The query heads of a group stand as so many places of one head, so that keys and values are read once.
    grouped = query.reshape(rows, groups, -1, width)
    # Without a mask a single token sees all there is.
    mask = None if attention_mask is None else _grouped_mask(attention_mask, places, heads // groups)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling"))
    return out.view(rows, heads, places, -1).transpose(1, 2).contiguous(), None


def _grouped_mask(mask: Tensor, places: int, heads: int) -> Tensor:
    """For so many heads as places of one. All layers of a pass are handed the same mask, which keeps the result."""
    if not hasattr(mask, "grouped"):
        mask.grouped = mask.expand(-1, -1, places, -1).repeat(1, 1, heads, 1)
    return mask.grouped


AttentionInterface.register(GROUPED, grouped_sdpa)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attend_by_groups(model: PreTrainedModel, device: torch.device) -> None:
    """Lets a model that would attend by transformers' `sdpa` attend as above, where that pays."""
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)
