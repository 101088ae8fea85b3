"""A smaller model with the same vocabulary drafts token by token.

Leviathan et al. 2023 and Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling";
transformers' `assistant_model`. Greedy requests are drafted by argmax; for sampled requests the assistant samples with
the request's own settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from playground.decoding.drafters.base import NOTHING, Choice, Draft, Drafter, draft_tokens
from playground.decoding.drafters.build import Setup
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler


class AssistantDrafter(Drafter):
    """Keeps the assistant's KV cache across rounds, so that it processes each token once.

    Args:
        vocab_size: the target's. Two models of one tokenizer may pad their embeddings to different sizes: the
            assistant's surplus ids are never drafted, and ids that it lacks have q = 0.
        eos_ids: tokens after which drafting is pointless.
    """

    def __init__(self, assistant: Runner, vocab_size: int, sampler: Sampler, eos_ids: Collection[int]) -> None:
        assistant.prepare()
        self._assistant = assistant
        self._vocab_size = vocab_size
        self._sampler = sampler
        self._eos_ids = eos_ids

    @property
    def cache_bytes(self) -> int:
        return self._assistant.cache_bytes

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        k = min(k, self._assistant.context_limit - len(ids))
        # An id beyond the assistant's embedding can never be fed, so nothing is drafted after it for the whole run.
        if k < 1 or max(ids[self._assistant.length :]) >= self._assistant.vocab_size:
            return NOTHING
        return draft_tokens(ids, k, stop_below, self._eos_ids, self._next)

    def _next(self, ids: list[int]) -> Choice:
        logits = self._assistant.forward(ids[self._assistant.length :], keep=1)[:, : self._vocab_size]
        scores = self._sampler.scores(logits, lambda row: ids)
        if self._sampler.greedy:
            best = scores[0].softmax(dim=-1).max(dim=-1)
            q, id_ = torch.stack([best.values, best.indices.float()]).tolist()  # one transfer
            if math.isnan(q):
                raise self._assistant.not_numbers()
            return Choice(int(id_), q, None, scores[0])
        distribution = self._sampler.probabilities(scores)[0]
        try:
            token = self._sampler.draw(distribution)
        except FloatingPointError:
            raise self._assistant.not_numbers() from None
        padded = torch.nn.functional.pad(distribution, (0, self._vocab_size - len(distribution)))
        return Choice(token, float(distribution[token]), padded, scores[0])

    def commit(self, length: int) -> None:
        # The assistant has not processed the last draft token, so its cache may be shorter than the accepted sequence.
        self._assistant.commit(min(self._assistant.length, length))


def build(setup: Setup) -> AssistantDrafter:
    assistant = setup.runners(setup.assistant, "assistant")
    return AssistantDrafter(assistant, setup.target.vocab_size, setup.sampler, setup.eos_ids)
