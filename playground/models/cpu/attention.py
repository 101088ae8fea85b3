"""Grouped-query attention on a CPU that reads each key and value once, in plain and verify passes alike.

transformers' `sdpa` repeats the key heads wherever there is a mask, which is what a GPU's kernels want; in a verify
pass this copies the whole KV cache. Without a mask, in a pass over a single token, torch's kernel reads the keys of a
group once for each of its query heads, row by row, and takes longer for one token than for several.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

GROUPED = "grouped_sdpa"
OTHER_KINDS = ("softcap", "position_bias", "cache")  # of attention, which transformers' own function handles


def grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The same result as transformers' `sdpa_attention_forward`: [B, H, n, D] queries over [B, G, m, D] keys give
    [B, n, H, D]."""
    rows, heads, positions, width = query.shape
    prompt = attention_mask is None and positions > 1  # causal, which torch's kernel does best
    masks_heads = attention_mask is not None and attention_mask.shape[1] > 1
    if prompt or masks_heads or any(kwargs.get(kind) is not None for kind in OTHER_KINDS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    groups = key.shape[1]
    # The query heads of a group become positions of one head, so that its keys and values are read once.
    grouped = query.reshape(rows, groups, -1, width)
    # Without a mask, a single token sees all entries.
    mask = None if attention_mask is None else _grouped_mask(attention_mask, positions, heads // groups)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling"))
    return out.view(rows, heads, positions, -1).transpose(1, 2).contiguous(), None


def _grouped_mask(mask: Tensor, positions: int, heads: int) -> Tensor:
    """The mask of `positions` queries, repeated for `heads` query heads a group.

    All layers of a pass share one mask, so the result is kept on it and dies with it. Layers may differ in their number
    of key heads, and a mask that outlives a pass (Gemma 4 assistants have one) meets other numbers of positions.
    """
    grouped: dict[tuple[int, int], Tensor] = mask.__dict__.setdefault("grouped", {})
    if (positions, heads) not in grouped:
        grouped[positions, heads] = mask.expand(-1, -1, positions, -1).repeat(1, 1, heads, 1)
    return grouped[positions, heads]


AttentionInterface.register(GROUPED, grouped_sdpa)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attend_by_groups(model: PreTrainedModel, device: torch.device) -> None:
    """Makes a model that would use transformers' `sdpa` use the attention above, on a CPU."""
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)
