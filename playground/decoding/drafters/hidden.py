"""What drafters share that read the target's hidden states and draft from a reduced vocabulary."""

from __future__ import annotations

import torch

from playground.decoding.cached import CachedModel
from playground.decoding.sampling import Sampler


class HiddenStates:
    """Collects the hidden states of the text that stands, pass by pass, until they are taken."""

    def __init__(self, target: CachedModel) -> None:
        target.keep_hidden = True
        self._target = target
        self._waiting: list[torch.Tensor] = []

    def commit(self) -> None:
        """To be called once a round, behind the target's own roll-back."""
        self._waiting.append(self._target.hidden)

    def take(self) -> torch.Tensor | None:
        """(places, width), those behind what was taken before; None before the target's first pass."""
        waiting, self._waiting = self._waiting, []
        return torch.cat(waiting) if waiting else None


class DraftChoice:
    """Chooses a draft token from logits over a draft vocabulary, under the request's own settings."""

    def __init__(self, draft_ids: torch.Tensor, vocab_size: int, sampler: Sampler) -> None:
        self._draft_ids = draft_ids
        self._vocab_size = vocab_size
        self._sampler = sampler

    @property
    def greedy(self) -> bool:
        return self._sampler.greedy

    def __call__(self, text: list[int], logits: torch.Tensor) -> tuple[int, float, torch.Tensor]:
        """Args:
            text: what the token comes behind.
            logits: (draft vocabulary,).

        Returns:
            The token, its q, and the (vocabulary,) distribution q is taken from; what is not in the draft vocabulary
            has q = 0.
        """
        whole = logits.new_full((1, self._vocab_size), float("-inf"), dtype=torch.float32)
        whole[0, self._draft_ids] = logits.float()
        scores = self._sampler.scores(text, whole)
        if self._sampler.greedy:
            q = scores[0].softmax(dim=-1)
            token = int(q.argmax())
        else:
            q = self._sampler.probabilities(scores)[0]
            token = self._sampler.draw(q)
        return token, float(q[token]), q
