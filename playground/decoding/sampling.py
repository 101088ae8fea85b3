"""Logits to scores, probabilities and sampled tokens, by transformers' own logits processors."""

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

from playground.decoding.transfer import to_device
from playground.lane import Request


class Sampler:
    """The sampling settings of a request, for target and drafter alike, so that q is made as p is.

    Scores are logits after the processors that depend on the text (repetition penalty). Probabilities are the softmax
    of the scores after the warpers that depend on one row only (temperature, top-k, top-p, in transformers' order).
    All sampling uses one generator, seeded by the request, so runs are reproducible.

    `greedy`: whether tokens are chosen by argmax.
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
        """Whether scores depend on the text, and so differ from logits."""
        return bool(self._processors)

    def scores(self, logits: torch.Tensor, text_of: Callable[[int], Sequence[int]]) -> torch.Tensor:
        """Args:
            logits: (n, vocabulary).
            text_of: row -> the token ids that the row follows. Called only if scores depend on the text.

        Returns:
            (n, vocabulary) scores.
        """
        if not self._processors:
            return logits
        return torch.cat([self._score(row[None], text_of(i)) for i, row in enumerate(logits)])

    def _score(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        text = to_device([ids], logits.device)
        for processor in self._processors:
            logits = processor(text, logits)
        return logits

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """(n, vocabulary) scores to the distributions that tokens are sampled from."""
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores.softmax(dim=-1)

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Samples a token id from a (vocabulary,) distribution, which need not be normalised, and leaves it on the
        device. As `torch.multinomial` does it, without its checks, which end a GPU's work where they fail."""
        noise = torch.empty_like(probabilities).exponential_(1, generator=self.generator)
        return (probabilities / noise).argmax()

    def draw(self, probabilities: torch.Tensor) -> int:
        """The same, read.

        Raises:
            FloatingPointError: the probabilities are not numbers.
        """
        chosen = self.choose(probabilities)
        return read_choices(chosen[None], probabilities[chosen])[0]


def read_choices(choices: torch.Tensor, scores: torch.Tensor) -> list[int]:
    """Reads (n,) choices, and whether the scores that they were made by are numbers, in one transfer.

    Raises:
        FloatingPointError: a score is NaN, which every choice takes for the highest.
    """
    *read, damaged = torch.cat([choices, scores.isnan().any().long()[None]]).tolist()
    if damaged:
        raise FloatingPointError
    return read
