"""Collects the hidden states of a pass, for drafters that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from playground.models.attention import decoder_of, layers_of


def watched_modules(model: PreTrainedModel, layers: Sequence[int]) -> list[nn.Module]:
    """Returns the modules whose outputs are the hidden states of `layers`, in the form of `Runner.watch`."""
    modules = layers_of(model) or ()
    return [decoder_of(model) if layer == -1 else modules[layer] for layer in layers]


@contextmanager
def watching(modules: Sequence[nn.Module], see: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
    """Calls `see` with the index and the output, (rows, tokens, width), of each module that runs in this context.

    `output_hidden_states` would leave a hook on every layer, which slows all later passes, those of the standard lane
    included.
    """

    def hook(i: int) -> Callable[[nn.Module, object, torch.Tensor | BaseModelOutput], None]:
        return lambda module, inputs, output: see(i, output if isinstance(output, torch.Tensor) else output[0])

    hooks = [module.register_forward_hook(hook(i)) for i, module in enumerate(modules)]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def hidden_states(seen: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Returns what `watching` saw of modules, by their index, as (tokens, modules x width); None if that is nothing."""
    return torch.cat([seen[i][0] for i in range(len(seen))], dim=-1) if seen else None
