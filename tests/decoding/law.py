"""Real models whose answers are remembered, so that many thousand runs of one text cost little; and what they must
follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.base import Drafter
from playground.decoding.drafters.branches import Branches
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.trace import Request
from tests.decoding.fakes import FakeModel, Law, NumberTokenizer
from tests.decoding.test_verify import agrees

PROMPT, LENGTH, DRAWS = [0, 1, 0, 2, 0, 1], 3, 20_000


def law_of(model: PreTrainedModel) -> Law:
    """Text -> logits behind it, by a pass over the whole text, once for each text."""
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def law(ids: Sequence[int]) -> torch.Tensor:
        if tuple(ids) not in known:
            with torch.inference_mode():
                known[tuple(ids)] = model(torch.tensor([list(ids)])).logits[0, -1].float()
        return known[tuple(ids)]

    return law


class RememberedBranches:
    """What `make` grows, from the first token of the text on, once for each text and branch."""

    cache_bytes = 0

    def __init__(self, model: PreTrainedModel, make: Callable[[CachedModel], Branches]) -> None:
        self._model, self._make = model, make
        example = make(CachedModel(model))
        self.draft_ids, self.deepest = example.draft_ids, example.deepest
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        self._text = list(ids)
        self._paths: list[tuple[int, ...]] = [()]
        return None if len(ids) == len(PROMPT) else self._logits()

    def grow(self, ids: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        self._paths = [(*self._paths[row], id_) for id_, row in zip(ids, rows, strict=True)]
        return self._logits()

    def _logits(self) -> torch.Tensor:
        return torch.stack([self._behind(path) for path in self._paths])

    def _behind(self, path: tuple[int, ...]) -> torch.Tensor:
        key = (*self._text, -1, *path)
        if key not in self._known:
            target = CachedModel(self._model)
            branches = self._make(target)
            target.forward(self._text[:-1], keep=1)
            target.keep(len(self._text) - 1)
            branches.commit()
            with torch.inference_mode():
                logits = branches.root(self._text)
                for id_ in path:
                    logits = branches.grow([id_], [0])
            self._known[key] = logits[0].float()
        return self._known[key]

    def end(self) -> None:
        pass

    def commit(self) -> None:
        pass


def follows_the_law(
    target_law: Law, vocab_size: int, new_drafter: Callable[[Sampler], Drafter], draws: int = DRAWS, **sampling: float
) -> bool:
    """Whether the runs' outputs behind PROMPT agree with the exact probability of each of all continuations, by a
    chi-square test."""
    sampler = Sampler(Request("x", seed=3, **sampling), torch.device("cpu"))

    def probability(text: tuple[int, ...]) -> float:
        chance = 1.0
        for i, id_ in enumerate(text):
            before = [*PROMPT, *text[:i]]
            scores = sampler.scores(target_law(before)[None], lambda row, before=before: before)
            chance *= float(sampler.probabilities(scores)[0, id_])
        return chance

    counts = dict.fromkeys(itertools.product(range(vocab_size), repeat=LENGTH), 0)
    detokenizer = Detokenizer(NumberTokenizer(), PROMPT)
    for _ in range(draws):
        target = FakeModel(target_law, vocab_size)
        rounds = decode(target, new_drafter(sampler), Constant(2), sampler, detokenizer, PROMPT, LENGTH, ())
        counts[tuple(token.id for round_ in rounds for token in round_.tokens)] += 1
    return agrees(list(counts.values()), torch.tensor([probability(text) for text in counts]))
