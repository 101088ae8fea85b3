"""The target's first layers draft, with its final norm and head.

Elhoushi et al. 2024, "LayerSkip"; transformers' `assistant_early_exit`. They read the KV cache that the target has of
them, and so never see the text a second time; only the prompt, which the target has not read yet, goes through them
before the first pass. What they enter into the cache while they draft is taken out again before the target verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transformers import PreTrainedModel

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.sampling import Sampler


class EarlyExitDrafter(AssistantDrafter):
    """Args:
    layers: the first of the target's layers, as models/networks/early_exit.py makes them.
    """

    cache_bytes = 0  # it drafts on the target's

    def __init__(
        self, layers: PreTrainedModel, target: CachedModel, sampler: Sampler, eos_ids: Collection[int]
    ) -> None:
        super().__init__(target.first_layers(layers), target.vocab_size, sampler, eos_ids)
        self._target = target

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        self._assistant.length = self._target.length
        draft = super().propose(ids, k, stop_below)
        self._assistant.keep(self._target.length)
        return draft

    def commit(self, length: int) -> None:
        pass  # the target rolls back the cache that is theirs, too


def build(setup: Setup) -> EarlyExitDrafter:
    refuse_recurrent(setup.target, setup.models.target.name)
    return EarlyExitDrafter(setup.assistant.model, setup.target, setup.sampler, setup.eos_ids)
