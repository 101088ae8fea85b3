"""A target's first layers as a model, with the target's embedding, final norm and head.

Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding". Any target can exit
early; the result drafts well only if the target was trained for it.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.attention import decoder_of, layers_of
from playground.models.load import LoadedModel

M = TypeVar("M", bound=nn.Module)


def first_layers(target: LoadedModel, count: int) -> LoadedModel:
    """Returns the target's first `count` layers as a model. Weights are shared, not copied.

    Raises:
        PlaygroundError: the target has too few layers, or its layers cannot be found.
    """
    layers = layers_of(target.model)
    if layers is None:
        raise PlaygroundError(
            f"{target.name} ({type(target.model).__name__}) cannot exit early: its layers were not found. Choose "
            "another drafter, or a target such as Llama or Qwen."
        )
    if not 1 <= count < len(layers):
        raise PlaygroundError(
            f"{target.name} has {len(layers)} layers and cannot exit after layer {count}. "
            f"Choose an early exit from 1 to {len(layers) - 1}."
        )
    shallow = _exiting_after(target.model, layers[:count])
    return LoadedModel(shallow, target.tokenizer, target.name, f"its first {count} layers")


def _exiting_after(model: PreTrainedModel, layers: nn.ModuleList) -> PreTrainedModel:
    decoder = decoder_of(model)
    path = next(name for name, module in model.named_modules() if module is decoder)
    shallow = _own_children(model)
    at: nn.Module = shallow
    for name in path.split("."):
        child = _own_children(getattr(at, name))
        setattr(at, name, child)
        at = child
    at.layers = layers
    return shallow


def _own_children(module: M) -> M:
    """Returns a shallow copy whose children can be replaced without changing the original's."""
    shallow = copy.copy(module)
    shallow._modules = dict(module._modules)
    return shallow
