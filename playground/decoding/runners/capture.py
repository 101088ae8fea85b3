"""Hidden states of a pass, for the drafters that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from playground.models.decoder import decoder_of, layers_of


class HiddenCapture:
    """Collects the outputs of chosen layers during a pass.

    `hidden`: (tokens, layers x width), of the last pass's tokens. Undefined before the first pass that is watched.
    """

    hidden: torch.Tensor

    def __init__(self) -> None:
        self._watched: list[nn.Module] = []

    def watch(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        """`layers`: as `Runner.watch` takes them."""
        modules = layers_of(model) or ()
        self._watched = [decoder_of(model) if layer == -1 else modules[layer] for layer in layers]

    @contextmanager
    def during_pass(self) -> Iterator[None]:
        # `output_hidden_states` would leave a hook on every layer, which slows all later passes, those of the standard
        # lane included.
        seen: dict[nn.Module, torch.Tensor] = {}

        def see(module: nn.Module, inputs: object, output: torch.Tensor | BaseModelOutput) -> None:
            seen[module] = (output if isinstance(output, torch.Tensor) else output[0])[0]

        hooks = [module.register_forward_hook(see) for module in self._watched]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if hooks:
            self.hidden = torch.cat([seen[module] for module in self._watched], dim=-1)

    def gather(self, tail: int, index: torch.Tensor) -> None:
        """Moves those of the last `tail` rows that `index` names to the front of the tail."""
        if self._watched:
            end = self.hidden[-tail:]
            end[: len(index)] = end[index]

    def drop(self, dropped: int) -> None:
        """Drops the last rows."""
        if self._watched:
            self.hidden = self.hidden[: len(self.hidden) - dropped]
