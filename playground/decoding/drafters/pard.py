"""PARD: a small model that was taught to draft several tokens in one pass, from mask tokens after the text.

An et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation" (arXiv 2504.18583). The
model is a causal language model like any other and reads nothing of the target. The last token predicts the next one as
usual, and each mask token after it the one after that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.base import rewound_model
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.runners.base import Runner

DRAFTS = 8  # tokens of a pass: the paper trains so many


class PardBranches(ParallelBranches):
    """Keeps the model's KV cache of the text across rounds, and drops the mask tokens when their draft is done.

    Args:
        mask: the id of the mask token.
        vocab_size: the target's; see `AssistantBranches`.
    """

    def __init__(self, model: Runner, mask: int, vocab_size: int) -> None:
        model.prepare()
        super().__init__(torch.arange(min(model.vocab_size, vocab_size), device=model.device), DRAFTS)
        self.context = model.context_limit
        self._model, self._mask = model, mask
        self._text = 0  # tokens

    @property
    def cache_bytes(self) -> int:
        return self._model.cache_bytes

    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Near the end of the model's context, of fewer positions. None too where the text has a token that the model
        lacks."""
        text = ids[self._model.length :]
        if max(text) >= self._model.vocab_size:
            return None
        self._text = len(ids)
        drafts = min(DRAFTS, self.context - len(ids))
        return self._model.forward([*text, *[self._mask] * (drafts - 1)], keep=drafts)[:, : len(self.draft_ids)]

    def end(self) -> None:
        self._model.commit(self._text)

    def rewind(self, length: int) -> int:
        return rewound_model(self._model, length)


def branches(setup: Setup) -> PardBranches:
    mask = setup.assistant.model.config.pard_token
    return PardBranches(setup.runners(setup.assistant, "assistant"), mask, setup.target.vocab_size)
