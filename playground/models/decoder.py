"""A model's decoder: the module that runs its layers and ends with the final norm, and how long a text it takes."""

from __future__ import annotations

import sys

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The decoder that `get_decoder` is meant to return.

    `get_decoder` of Llama 4 returns the causal model itself, whose output is logits. The decoder is a child of it.
    """
    found = model.get_decoder()
    if _layers(found):
        return found
    return next((child for child in found.children() if _layers(child)), found)


def layers_of(model: PreTrainedModel) -> nn.ModuleList | None:
    """The decoder's layers; None where the architecture does not call them `layers` (GPT-2 and others of its age)."""
    return _layers(decoder_of(model))


def context_of(config: PretrainedConfig) -> int:
    """The longest text, in tokens, that a model or a drafter's network with this config has positions for.

    YaRN's rotary positions reach as far as their scaling, also where `max_position_embeddings` is the length before
    it; of other scalings it is the length after it, as vLLM reads them. Unlimited (`sys.maxsize`) are a config that
    names no length (ALiBi, Mamba) and layers that all have a sliding window: no token attends to another one far from
    it.
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
