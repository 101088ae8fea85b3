"""The logits processors of a request over the rows of one pass: transformers' own, where it has them.

Each row follows a text of its own: the tokens so far, then the branch of the draft that leads to the row. A processor
is given a row together with that text. So its result for a row does not depend on the rest of the draft, and
verification stays exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple, cast

import torch
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor

from playground.decoding.transfer import to_device
from playground.lane import Request

TextOf = Callable[[int], Sequence[int]]  # row -> the token ids that the row follows; no row follows fewer than row 0


class Processor(NamedTuple):
    """A logits processor, and the part of the text that it depends on.

    Attributes:
        change: takes (1, n) token ids and (1, vocabulary) scores. A processor that reads nothing takes any number of
            rows.
        reads: the part that it depends on. A processor that reads the length alone is given ids without values.
        at: the lengths of text, in tokens, at which it changes anything.
    """

    change: LogitsProcessor
    reads: Literal["nothing", "length", "tokens"] = "tokens"
    at: range = range(sys.maxsize)


class Refused(LogitsProcessor):
    """Refuses certain tokens everywhere. `ids`: (vocabulary,) bool, true for those tokens."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.FloatTensor) -> torch.FloatTensor:
        return cast(torch.FloatTensor, scores.masked_fill(self.ids, -torch.inf))


class AnswerPenalties(LogitsProcessor):
    """Presence and frequency penalty as OpenAI defines them and vLLM applies them (`apply_penalties`), after the
    repetition penalty: `presence` is subtracted from the logits of the tokens that the answer has, and `frequency` once
    for each time that it has the token. The prompt does not count.

    https://platform.openai.com/docs/api-reference/chat/create

    Args:
        prompt: the length of the prompt in tokens.
    """

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        answer = input_ids[:, self._prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)


def processors_of(request: Request, prompt_ids: Sequence[int]) -> list[Processor]:
    """Returns a request's processors, in the order in which `generate()` and vLLM apply them.

    Args:
        prompt_ids: the prompt, for processors that distinguish the answer from it.
    """
    processors: list[Processor] = []
    if request.repetition_penalty != 1:
        processors.append(Processor(RepetitionPenaltyLogitsProcessor(request.repetition_penalty)))
    if request.presence_penalty or request.frequency_penalty:
        change = AnswerPenalties(len(prompt_ids), request.presence_penalty, request.frequency_penalty)
        processors.append(Processor(change, at=range(len(prompt_ids) + 1, sys.maxsize)))
    return processors


def processed(processors: Sequence[Processor], logits: torch.Tensor, text_of: TextOf) -> torch.Tensor:
    """Turns (n, vocabulary) logits into scores of the same shape. `text_of` is called only if a processor reads the
    text."""
    if not processors:
        return logits
    text, device = cache(text_of), logits.device
    tokens = cache(lambda row: to_device([text(row)], device))
    for it in processors:
        if it.reads == "nothing":
            logits = it.change(None, logits)
        elif len(text(0)) < it.at.stop and (rows := [row for row in range(len(logits)) if len(text(row)) in it.at]):
            ids = [torch.empty(1, len(text(row)), dtype=torch.long, device="meta") for row in rows]  # without values
            ids = ids if it.reads == "length" else [*map(tokens, rows)]
            changed = torch.cat([it.change(text_, logits[row : row + 1]) for row, text_ in zip(rows, ids, strict=True)])
            whole = len(rows) == len(logits)
            logits = changed if whole else logits.index_copy(0, to_device(rows, device), changed)
    return logits
