"""Where the decoder of a model is: the module that runs its layers and ends with the final norm."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


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


def _layers(module: nn.Module) -> nn.ModuleList | None:
    layers = getattr(module, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else None
