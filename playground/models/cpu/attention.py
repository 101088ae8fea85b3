"""Attention in float32 whose result for a token does not depend on the tokens beside it, to the bit.

Torch's own kernel orders its sums by the shape of the whole; rounded to bfloat16 before the next product, a difference
of the last bit becomes one of the eighth. Without a mask, in a pass over a single token, it also reads the keys of a
group once for each of its query heads, row by row, and takes longer for one token than for several.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK, ENTRIES = 4, 128


def in_order(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float | None) -> Tensor:
    """As `scaled_dot_product_attention`. Independent as far as matrix products of whole BLOCKs of rows, over at most
    ENTRIES summands, are."""
    positions, heads = query.shape[2], query.shape[:2]
    query = F.pad(query, (0, 0, 0, -positions % BLOCK)).flatten(0, 1)
    key, value = key.flatten(0, 1), value.flatten(0, 1)
    unused = query.new_empty(1)
    scores = torch.baddbmm(unused, query, key.transpose(1, 2), beta=0, alpha=scale or query.shape[2] ** -0.5)
    if attn_mask is not None:
        scores.unflatten(0, heads)[:, :, :positions] += attn_mask
    shares = scores.softmax(dim=-1)
    out = torch.bmm(shares[..., :ENTRIES], value[:, :ENTRIES])
    for start in range(ENTRIES, key.shape[1], ENTRIES):
        out.baddbmm_(shares[..., start : start + ENTRIES], value[:, start : start + ENTRIES])
    return out.unflatten(0, heads)[:, :, :positions]
