"""Grouped-query attention on a CPU that reads each key and value once, in plain and verify passes alike. In float32 a
token's result is the same to the bit in both.

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
BLOCK, ENTRIES = 4, 128
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
    mask = None if attention_mask is None else _grouped_mask(attention_mask, query, groups)
    attend = _in_order if query.dtype == torch.float32 else F.scaled_dot_product_attention
    out = attend(grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling"))
    return out.reshape(rows, heads, positions, -1).transpose(1, 2).contiguous(), None


def _in_order(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention whose result for a token does not depend on the tokens beside it, to the bit, as far as matrix products
    of whole BLOCKs of rows, over at most ENTRIES summands, do not. Torch's own kernel orders its sums by the shape of
    the whole; rounded to bfloat16 before the next product, a difference of the last bit becomes one of the eighth."""
    positions = query.shape[2]
    query = F.pad(query, (0, 0, 0, -positions % BLOCK))
    scores = (query @ key.transpose(2, 3)) * (scale or query.shape[3] ** -0.5)
    if attn_mask is not None:
        scores[:, :, :positions] += attn_mask
    shares = scores.softmax(dim=-1)
    out = shares[..., :ENTRIES] @ value[:, :, :ENTRIES]
    for start in range(ENTRIES, key.shape[2], ENTRIES):
        out += shares[..., start : start + ENTRIES] @ value[:, :, start : start + ENTRIES]
    return out[:, :, :positions]


def _grouped_mask(mask: Tensor, query: Tensor, groups: int) -> Tensor:
    """The mask of the queries, to be added to the scores, repeated for the query heads of a group.

    All layers of a pass share one mask, so the result is kept on it and dies with it. Layers may differ in their number
    of key heads, and a mask that outlives a pass (Gemma 4 assistants have one) meets other numbers of positions.
    """
    positions, heads = query.shape[2], query.shape[1] // groups
    grouped: dict[tuple[int, int], Tensor] = mask.__dict__.setdefault("grouped", {})
    if (positions, heads) not in grouped:
        added = mask
        if mask.dtype == torch.bool:
            least = torch.finfo(query.dtype).min
            added = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, least)
        grouped[positions, heads] = added.expand(-1, -1, positions, -1).repeat(1, 1, heads, 1)
    return grouped[positions, heads]


AttentionInterface.register(GROUPED, grouped_sdpa)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attend_by_groups(model: PreTrainedModel, device: torch.device) -> None:
    """Makes a model that would use transformers' `sdpa` use the attention above, on a CPU."""
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)
