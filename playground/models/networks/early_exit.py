"""A target's first layers as a model of their own, with its embedding, its final norm and its head.

Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding". Any target can be left
early; what comes out is worth drafting with only where it was trained to be left there.
"""

from __future__ import annotations

import copy

from torch import nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.decoder import decoder_of, layers_of
from playground.models.load import LoadedModel


def first_layers(target: LoadedModel, count: int) -> LoadedModel:
    """The target's first `count` layers. The weights are the target's own, not copies of them.

    Raises:
        PlaygroundError: the target does not have so many layers, or has none that can be told apart.
    """
    layers = layers_of(target.model)
    if layers is None:
        raise PlaygroundError(
            f"{target.name} ({type(target.model).__name__}) cannot be left early: where its layers are kept is not "
            "known here. Choose another way of drafting, or a target such as Llama or Qwen."
        )
    if not 1 <= count < len(layers):
        raise PlaygroundError(
            f"{target.name} has {len(layers)} layers and cannot be left behind layer {count}. "
            f"Choose an early exit from 1 to {len(layers) - 1}."
        )
    return LoadedModel(_left_behind(target.model, count), target.tokenizer, target.name, f"its first {count} layers")


def _left_behind(model: PreTrainedModel, count: int) -> PreTrainedModel:
    decoder = decoder_of(model)
    path = next(name for name, module in model.named_modules() if module is decoder)
    shallow = at = _own_children(model)
    for name in path.split("."):
        child = _own_children(getattr(at, name))
        setattr(at, name, child)
        at = child
    at.layers = at.layers[:count]
    return shallow


def _own_children(module: nn.Module) -> nn.Module:
    """A copy that shares everything with the module, but can be given another child."""
    shallow = copy.copy(module)
    shallow._modules = dict(module._modules)
    return shallow
