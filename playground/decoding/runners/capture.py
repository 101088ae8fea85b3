"""Collects the hidden states of a pass, for drafters that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from playground.models.attention import decoder_of, layers_of


class HiddenCapture:
    """Collects the outputs of chosen layers during a pass.

    `hidden`: (tokens, layers x width), of the last pass's tokens. Undefined before the first pass that is watched.
    """

    hidden: torch.Tensor

    def __init__(self) -> None:
        self._watched: list[nn.Module] = []

    def watch(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        """Starts to collect the outputs of `layers`, which are in the form of `Runner.watch`."""
        self._watched = watched_modules(model, layers)

    @contextmanager
    def during_pass(self) -> Iterator[None]:
        seen: dict[int, torch.Tensor] = {}
        with watching(self._watched, seen.__setitem__):
            yield
        if self._watched:
            self.hidden = torch.cat([seen[i] for i in range(len(self._watched))], dim=-1)[0]

    def gather(self, tail: int, index: torch.Tensor) -> None:
        """Moves those of the last `tail` rows that `index`, (n,), names to the front of the tail."""
        if self._watched:
            end = self.hidden[-tail:]
            end[: len(index)] = end[index]

    def drop_first(self, dropped: int) -> None:
        if self._watched:
            self.hidden = self.hidden[dropped:]

    def drop(self, dropped: int) -> None:
        """Drops the last `dropped` rows."""
        if self._watched:
            self.hidden = self.hidden[: len(self.hidden) - dropped]


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
