"""Drafters that run a language model token by token: a smaller model, or the target's own first layers.

A smaller model with the same vocabulary (`AssistantDrafter`): Leviathan et al. 2023 and Chen et al. 2023, "Accelerating
Large Language Model Decoding with Speculative Sampling"; transformers' `assistant_model`.

The target's first layers with its final norm and head (`EarlyExitDrafter`): Elhoushi et al. 2024, "LayerSkip";
transformers' `assistant_early_exit`. They share the target's KV cache of these layers and process no token a second
time, except the prompt, which goes through them before the target's first pass. The entries that drafting adds are
dropped before the target verifies.

Greedy requests are drafted by argmax; for sampled requests the model samples with the request's own settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import torch
from transformers import PreTrainedModel

from playground.decoding import parity_check
from playground.decoding.drafters.base import NOTHING, Captured, Draft, ModelBranches
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.pass_cost import PassCost
from playground.decoding.runners.base import Runner
from playground.decoding.runners.graphs import Function
from playground.decoding.runners.static import StaticRunner
from playground.decoding.sampling import Sampler, Tensors


class AssistantBranches(ModelBranches):
    """Grows a chain with an assistant, which processes each token once."""

    _root: torch.Tensor  # (1, draft vocabulary), the logits after the text

    @property
    def captured(self) -> Captured | None:
        return self._drafted if isinstance(self._model, StaticRunner) else None

    def _drafted(self, key: Hashable, work: Function, passes: Sequence[int], *given: torch.Tensor) -> Tensors:
        assert isinstance(self._model, StaticRunner), "it is captured"
        return self._model.drafted(key, work, len(passes), self._root, *given)

    def read(self, ids: Sequence[int]) -> bool:
        self._root = self._logits(ids[self._model.length :])
        return True

    def root(self, ids: Sequence[int]) -> torch.Tensor:
        self.read(ids)
        return self._root

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return self._logits(ids)

    def _logits(self, ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        return self._model.forward(ids, keep=1)[:, : len(self.draft_ids)]


class AssistantDrafter(ChainDrafter):
    """Drafts a chain with a model of the target's vocabulary.

    Args:
        vocab_size: the target's.
        eos_ids: tokens after which nothing is drafted.
        priced: the cost of target passes, as for `ChainDrafter`.
    """

    def __init__(self, assistant: Runner, vocab_size: int, eos_ids: Collection[int], *priced: PassCost) -> None:
        super().__init__(AssistantBranches(assistant, vocab_size), vocab_size, eos_ids, *priced)
        self._assistant = assistant

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        # An id beyond the assistant's embedding can never be fed, so nothing is drafted after it for the whole run.
        if len(ids) < self._branches.context and max(ids[self._assistant.length :]) >= self._assistant.vocab_size:
            return NOTHING
        draft = super().propose(ids, k, stop_below, sampler)
        if any(q is not None and math.isnan(q) for q in draft.q):
            raise self._assistant.not_numbers()
        return draft

    def commit(self, length: int) -> None:
        # The assistant has not processed the last draft token, so its cache may be shorter than the accepted sequence.
        self._assistant.commit(min(self._assistant.length, length))


def build(setup: Setup) -> AssistantDrafter:
    parity_check.check_assistant(setup.assistant, setup.runners)
    assistant = setup.runners(setup.assistant, "assistant")
    return AssistantDrafter(assistant, setup.target.vocab_size, setup.eos_ids, *setup.priced)


class EarlyExitDrafter(AssistantDrafter):
    """Drafts a chain with the target's first layers, on the target's cache.

    Args:
        layers: the first layers, from models/networks/early_exit.py.
    """

    cache_bytes = 0  # it uses the target's cache

    def __init__(self, layers: PreTrainedModel, target: Runner, eos_ids: Collection[int], *priced: PassCost) -> None:
        super().__init__(target.first_layers(layers), target.vocab_size, eos_ids, *priced)
        self._target = target

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        self._assistant.length = self._target.length
        draft = super().propose(ids, k, stop_below, sampler)
        self._assistant.commit(self._target.length)
        return draft

    def commit(self, length: int) -> None:
        pass  # the target rolls back the shared cache

    def rewind(self, length: int) -> int:
        self._assistant.length = length
        self._assistant.prepare()
        return length


def build_early_exit(setup: Setup) -> EarlyExitDrafter:
    refuse_recurrent(setup.target, setup.models.target.name)
    return EarlyExitDrafter(setup.assistant.model, setup.target, setup.eos_ids, *setup.priced)
