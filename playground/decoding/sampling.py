"""From logits to scores, probabilities and draws, by transformers' own logits processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from playground.lane import Request


class Sampler:
    """A request's way of choosing tokens: the same for target and drafter, so that q comes from the settings of p.

    Scores are logits after the processors that look at the text (repetition penalty); probabilities are the softmax of
    the scores after the warpers that look at one row only (temperature, top-k, top-p, in transformers' order). Draws
    come from one generator, seeded by the request, so that a run repeats.
    """

    def __init__(self, request: Request, device: torch.device) -> None:
        self.greedy = request.greedy
        self.generator = torch.Generator(device).manual_seed(request.seed)
        # Plain lists: transformers' own list inspects each processor's signature at each call, for every draft token.
        self._processors: list[LogitsProcessor] = []
        self._warpers: list[LogitsProcessor] = []
        if request.repetition_penalty != 1:
            self._processors.append(RepetitionPenaltyLogitsProcessor(request.repetition_penalty))
        if not self.greedy:
            if request.temperature != 1:
                self._warpers.append(TemperatureLogitsWarper(request.temperature))
            if request.top_k:
                self._warpers.append(TopKLogitsWarper(request.top_k))
            if request.top_p < 1:
                self._warpers.append(TopPLogitsWarper(request.top_p))

    @property
    def reads_text(self) -> bool:
        """Whether scores differ from logits."""
        return bool(self._processors)

    def scores(self, logits: torch.Tensor, text_of: Callable[[int], Sequence[int]]) -> torch.Tensor:
        """Args:
            logits: (n, vocabulary).
            text_of: the token ids that a row was computed behind; asked only where the scores read the text.

        Returns:
            (n, vocabulary).
        """
        if not self._processors:
            return logits
        return torch.cat([self._score(row[None], text_of(i)) for i, row in enumerate(logits)])

    def _score(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        text = torch.tensor([ids], device=logits.device)
        for processor in self._processors:
            logits = processor(text, logits)
        return logits

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """(n, vocabulary) scores to the distributions that tokens are drawn from."""
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores.softmax(dim=-1)

    def draw(self, probabilities: torch.Tensor) -> int:
        """One token id from a (vocabulary,) distribution; it need not be normalised."""
        return int(torch.multinomial(probabilities, 1, generator=self.generator))
