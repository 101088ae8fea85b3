"""The target's first layers draft, with its final norm and head.

Elhoushi et al. 2024, "LayerSkip"; transformers' `assistant_early_exit`. They share the target's KV cache of these
layers and process no token a second time, except the prompt, which goes through them before the target's first pass.
The entries that drafting adds are dropped before the target verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transformers import PreTrainedModel

from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler


class EarlyExitDrafter(AssistantDrafter):
    """Args:
    layers: the target's first layers, from models/networks/early_exit.py.
    """

    cache_bytes = 0  # it uses the target's cache

    def __init__(self, layers: PreTrainedModel, target: Runner, eos_ids: Collection[int]) -> None:
        super().__init__(target.first_layers(layers), target.vocab_size, eos_ids)
        self._target = target

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        self._assistant.length = self._target.length
        draft = super().propose(ids, k, stop_below, sampler)
        self._assistant.commit(self._target.length)
        return draft

    def commit(self, length: int) -> None:
        pass  # the target rolls back the shared cache

    def rewind(self, length: int) -> int:
        return length


def build(setup: Setup) -> EarlyExitDrafter:
    refuse_recurrent(setup.target, setup.models.target.name)
    return EarlyExitDrafter(setup.assistant.model, setup.target, setup.eos_ids)
