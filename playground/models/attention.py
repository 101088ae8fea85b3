"""A model's decoder and its context, and attention functions for verify passes.

The decoder is the module that runs the layers and ends with the final norm.

`grouped_sdpa` is grouped-query attention that reads each key and value once, in plain and verify passes alike.
transformers' `sdpa` repeats the key heads wherever there is a mask, because torch's kernels for masks take no groups.
This copies the KV cache in every layer: 5.4 GB a pass of Qwen3 8B over 4,096 entries. Here the query heads of a group
become positions of one head instead, with the mask repeated for them once a pass.

`in_order` is attention in float32 whose result for a token does not depend on the other tokens of the pass, to the bit.
Torch's own kernel orders its sums by the shape of the whole; rounded to bfloat16 before the next product, a difference
of the last bit becomes one of the eighth. Without a mask, in a pass over a single token, that kernel also reads the
keys of a group once for each of its query heads, row by row, and takes longer for one token than for several.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Returns the decoder that `get_decoder` is meant to return.

    `get_decoder` of Llama 4 returns the causal model itself, whose output is logits. The decoder is a child of it.
    """
    found = model.get_decoder()
    if _layers(found):
        return found
    return next((child for child in found.children() if _layers(child)), found)


def layers_of(model: PreTrainedModel) -> nn.ModuleList | None:
    """Returns the decoder's layers; None where the architecture does not name them `layers` (GPT-2 and others of its
    age)."""
    return _layers(decoder_of(model))


def context_of(config: PretrainedConfig) -> int:
    """Returns the longest text, in tokens, that a model or a drafter's network with this config has positions for.

    YaRN's rotary positions reach as far as their scaling, also where `max_position_embeddings` is the length before
    scaling; with other scalings it is the length after, as vLLM reads them. The context is unlimited (`sys.maxsize`)
    where a config names no length (ALiBi, Mamba) and where all layers have a sliding window: no token attends to one
    far away.
    """
    text = config.get_text_config(decoder=True)
    if set(getattr(text, "layer_types", None) or ()) == {"sliding_attention"}:
        return sys.maxsize
    named = getattr(text, "max_position_embeddings", None) or sys.maxsize
    rope = getattr(text, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if rope.get("rope_type") != "yarn":
        return named
    return max(named, int((rope.get("factor") or 1) * rope.get("original_max_position_embeddings", 0)))


def _layers(module: nn.Module) -> nn.ModuleList | None:
    layers = getattr(module, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else None


BLOCK, ENTRIES = 4, 128


def in_order(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float | None) -> Tensor:
    """Computes `scaled_dot_product_attention` of (B, G, n, D) queries over (B, G, m, D) keys and values. A token's
    result is independent of the others if matrix products of whole BLOCKs of rows, over at most ENTRIES summands,
    are."""
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


GROUPED = "grouped_sdpa"
DEVICES = ("cpu", "cuda")
ALIGNED = 8  # elements; a mask whose rows start elsewhere is copied by torch in every layer
OTHER_KINDS = ("softcap", "position_bias", "cache")  # transformers' own function handles these kinds of attention


@dataclass(frozen=True)
class Span:
    """The entries of a cache that the tokens of a pass see. A mask for `split_attention`, (1, 1, n, m), has it as the
    attribute `span`.

    Attributes:
        origin: (1,) integer; tokens see all entries of the window before it. The mask says which they see from there
            on.
        end: (1,) integer, the end of the entries that any token sees.
        positions: (n,) integer, of the tokens. None is before the first.
        window: of the entries before `origin`, a token sees those less than `window` before its position; 0 for all.
    """

    origin: Tensor
    end: Tensor
    positions: Tensor
    window: int = 0


def grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Replaces transformers' `sdpa_attention_forward`, with equal results: [B, H, n, D] queries over [B, G, m, D] keys
    give [B, n, H, D]."""
    span: Span | None = getattr(attention_mask, "span", None)
    if span:
        assert attention_mask is not None
        if any(kwargs.get(kind) is not None for kind in OTHER_KINDS):
            raise NotImplementedError("the kernel has neither softcap nor biases")
        from playground.models.cuda.attention import split_attention

        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        seen = attention_mask[0, 0], span.origin, span.end, span.positions
        return split_attention(query, key, value, *seen, scale, span.window), None
    rows, heads, positions, width = query.shape
    on_cpu = query.device.type == "cpu"
    # Causal over a prompt, or on a GPU a single token: torch's kernels without a mask do not repeat keys.
    unmasked = attention_mask is None and (positions > 1 or not on_cpu)
    masks_heads = attention_mask is not None and attention_mask.shape[1] > 1
    if unmasked or masks_heads or any(kwargs.get(kind) is not None for kind in OTHER_KINDS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(rows, key.shape[1], -1, width)
    # Without a mask, a single token sees all entries.
    mask = None if attention_mask is None else _grouped_mask(attention_mask, query, key)
    attend = in_order if on_cpu and query.dtype == torch.float32 else F.scaled_dot_product_attention
    out = attend(grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling"))
    return out.reshape(rows, heads, positions, -1).transpose(1, 2).contiguous(), None


def _grouped_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Returns the mask of the queries, to be added to the scores, repeated for the query heads of a group. Its rows are
    contiguous and aligned, as CUDA's kernels require.

    All layers of a pass share one mask, so the result is cached as an attribute of it. Layers may differ in their
    number of key heads.
    """
    positions, heads, entries = query.shape[2], query.shape[1] // key.shape[1], key.shape[2]
    name = f"grouped_{positions}_{heads}_{entries}"
    if not hasattr(mask, name):
        added = mask
        if mask.dtype == torch.bool:
            added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
        wide = -(-entries // ALIGNED) * ALIGNED
        grouped = query.new_empty(mask.shape[0], 1, heads, positions, wide)[..., :entries]
        setattr(mask, name, grouped.copy_(added[:, :, None]).flatten(2, 3))
    return getattr(mask, name)


AttentionInterface.register(GROUPED, grouped_sdpa)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attend_by_groups(model: PreTrainedModel, device: torch.device) -> None:
    """Makes a model that would use transformers' `sdpa` use `grouped_sdpa`, on DEVICES."""
    if device.type in DEVICES and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)
