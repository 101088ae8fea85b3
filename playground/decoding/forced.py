"""Verdicts that are drawn: what would a drafter bring that is right so often?

Drafting and verification run and are timed as they are, but how many tokens a round accepts is drawn from given rates.
So that the text stays the target's, the accepted tokens are those of standard decoding's answer, which is decoded
beforehand and put in the place of what the drafter proposed. Acceptance, q and all figures made of them are synthetic;
only the times are measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from playground.decoding.drafters.base import Draft, Drafter
from playground.decoding.sampling import Sampler
from playground.decoding.verify import Verdict, decisions


class Forced(Drafter):
    """A drafter whose first branch begins with tokens of the answer, as many as are to be accepted.

    Args:
        rates: as `Lane.drawn`.
        prompt: its length in tokens.
        answer: what standard decoding writes after it.
        seed: of the verdicts.
    """

    def __init__(self, drafter: Drafter, rates: Sequence[float], prompt: int, answer: Sequence[int], seed: int) -> None:
        self._drafter, self._rates, self._prompt, self._answer = drafter, rates, prompt, answer
        self._random = random.Random(seed)
        self._path: list[int] = []

    @property
    def cache_bytes(self) -> int:
        return self._drafter.cache_bytes

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        draft = self._drafter.propose(ids, k, stop_below, sampler)
        ahead = self._answer[len(ids) - self._prompt : -1]  # the last one is the target's own
        self._path = []
        drafted, q = list(draft.ids), list(draft.q)
        for i, id_, depth in zip(_first_branch(draft), ahead, range(len(ahead)), strict=False):
            if self._random.random() >= self._rates[min(depth, len(self._rates) - 1)]:
                break
            drafted[i], q[i] = id_, None
            self._path.append(i)
        return replace(draft, ids=drafted, q=q, probabilities=None)

    def commit(self, length: int) -> None:
        self._drafter.commit(length)

    def decide(self, draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
        """The verdict that was drawn. The pass that gave the scores took the time that it takes."""
        token = self._answer[length - self._prompt + len(self._path)]
        return Verdict(self._path, token, decisions(draft, self._path))


def _first_branch(draft: Draft) -> list[int]:
    """From the root, the first child of each token."""
    branch: list[int] = []
    for i, parent in enumerate(draft.parents):
        if parent == (branch[-1] if branch else -1):
            branch.append(i)
    return branch
