"""Loads answers into memory, and makes the batches that a drafter learns from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from playground.errors import PlaygroundError
from playground_distil.answers import Answer
from playground_distil.collect import read, shards

LONGEST = 1100  # tokens of an answer and its prompt that are learned from; of more, the last ones
SHORTEST = 8  # tokens that the target must have written: shorter answers have no room for a draft
POOL = 64  # batches whose answers are sorted by length together, so that little is padding


@dataclass(frozen=True)
class Batch:
    """Rows of n positions, padded at their ends. Fields of `Answer` have a leading row dimension here.

    `counts`: [rows, n], true where the target wrote the next token. `there`: [rows, n], true where a row has a token.
    """

    ids: Tensor
    features: Tensor
    choices: Tensor
    chances: Tensor
    counts: Tensor
    there: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def load_answers(folder: Path, layers: Sequence[int] = (-1,)) -> tuple[list[Answer], list[Answer]]:
    """Loads the answers to learn from, and the held-out ones, which are those of the first shard. `layers`: the layers
    whose features are read.

    Raises:
        PlaygroundError: there are fewer than two shards, or they lack a layer.
    """
    paths = shards(folder)
    if len(paths) < 2:
        raise PlaygroundError(
            f"There are {len(paths)} shards of answers in {folder}, and it takes two. Write them first."
        )
    held_out, *rest = (
        [_end_of(answer) for answer in read(path, layers) if len(answer.ids) - answer.prompt_length >= SHORTEST]
        for path in paths
    )
    return [answer for shard in rest for answer in shard], held_out


def draft_vocabulary(answers: Sequence[Answer], vocab_size: int, size: int) -> Tensor:
    """Returns the ids of the `size` tokens that the target chose most often for its answers, [size], in rising
    order."""
    counts = torch.zeros(vocab_size)
    for answer in answers:
        written = answer.choices[answer.prompt_length - 1 :, 0].long()
        counts.index_add_(0, written, torch.ones(len(written)))
    return counts.topk(min(size, vocab_size)).indices.sort().values


def batches(answers: Sequence[Answer], tokens: int, rng: random.Random) -> Iterator[Batch]:
    """Yields batches of about `tokens` tokens that contain every answer once."""
    order = list(answers)
    rng.shuffle(order)
    groups: list[list[Answer]] = []
    step = max(1, POOL * tokens * len(order) // max(1, sum(len(answer.ids) for answer in order)))
    for start in range(0, len(order), step):
        group: list[Answer] = []
        for answer in sorted(order[start : start + step], key=lambda answer: len(answer.ids)):
            if group and (len(group) + 1) * len(answer.ids) > tokens:
                groups.append(group)
                group = []
            group.append(answer)
        groups.append(group)
    rng.shuffle(groups)
    return map(batch_of, groups)


def batch_of(answers: Sequence[Answer]) -> Batch:
    def pad(name: str) -> Tensor:
        return pad_sequence([getattr(answer, name) for answer in answers], batch_first=True)

    lengths = torch.tensor([len(answer.ids) for answer in answers])
    starts = torch.tensor([answer.prompt_length for answer in answers])
    places = torch.arange(int(lengths.max()))
    there = places < lengths[:, None]
    counts = there & (places >= starts[:, None] - 1)
    return Batch(pad("ids").long(), pad("features"), pad("choices").long(), pad("chances").float(), counts, there)


def _end_of(answer: Answer) -> Answer:
    n = min(len(answer.ids), LONGEST)
    start = max(1, answer.prompt_length - (len(answer.ids) - n))
    return Answer(answer.ids[-n:], start, answer.features[-n:], answer.choices[-n:], answer.chances[-n:])
