"""Drafters of chains over `Branches`; trees: tree.py."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Sequence

import torch

from playground.decoding.drafters.base import NOTHING, Branches, Chosen, Draft, Drafter, past
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.runners.native import Wanted
from playground.decoding.sampling import Sampler
from playground.drafting_methods import METHODS

UNREAD = -1  # in the place of a drafted token that is still on the device


class BranchesDrafter(Drafter, ABC):
    """The base of drafters over `Branches`.

    Args:
        eos_ids: tokens after which nothing is drafted.
    """

    def __init__(self, branches: Branches, eos_ids: Collection[int]) -> None:
        self._branches = branches
        self._eos_ids = eos_ids
        self._ends_at = array("i", eos_ids)

    @property
    def cache_bytes(self) -> int:
        return self._branches.cache_bytes

    @torch.inference_mode()
    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        room = self._branches.context - len(ids)
        if room < 1:
            return past(self._branches.context)
        k = min(k, room, self._branches.deepest)
        wanted = self._wanted(ids, k, stop_below, sampler) if k > 0 else None
        whole = self._branches.drafted(ids, wanted) if wanted else None
        if whole is not None:
            return whole
        if k < 1:
            return NOTHING
        captured = self._branches.captured is not None and self._wants_all(ids, k, stop_below, sampler)
        logits = None if captured else self._branches.root(ids)
        if not (self._branches.read(ids) if captured else logits is not None):
            return NOTHING
        draft = self._grown(ids, k, stop_below, logits, sampler)
        self._branches.end()
        return draft

    @abstractmethod
    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        """Returns the limits of a draft of the likeliest tokens; None where it must be grown."""

    @abstractmethod
    def _wants_all(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> bool:
        """Returns whether a draft is k deep whatever its first tokens are, and made from their logits alone."""

    @abstractmethod
    def _grown(
        self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor | None, sampler: Sampler
    ) -> Draft:
        """Returns the draft, at most k deep. `logits`: (1, draft vocabulary), those after the sequence; None where
        captured work drafts."""

    def commit(self, length: int) -> None:
        if length < self._branches.context:  # else it never drafts again, and states would pile up unread
            self._branches.commit()

    def prepare(self) -> None:
        self._branches.prepare()

    def rewind(self, length: int) -> int:
        return self._branches.rewind(length) if length < self._branches.context else length


class ChainDrafter(BranchesDrafter):
    """Drafts a chain.

    Args:
        vocab_size: the target's.
        eos_ids: tokens after which nothing is drafted.
        cost: returns the cost of a target pass over a number of tokens, in passes over one token; with it a draft ends
            by the chance to get there, as a tree does, and tokens that are not worth their verification are left out.
    """

    def __init__(
        self,
        branches: Branches,
        vocab_size: int,
        eos_ids: Collection[int],
        cost: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(branches, eos_ids)
        self._vocab_size, self._priced, self._cost = vocab_size, cost is not None, cost or (lambda tokens: 1.0)
        self._costs = torch.empty(0)  # of a target pass over 0, 1, 2, … tokens

    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        if not sampler.greedy or not sampler.only_refuses(range(len(ids), len(ids) + k)):
            return None
        if len(self._costs) < k + 2:
            self._costs = torch.tensor([self._cost(tokens) for tokens in range(k + 2)])
        return Wanted(k, 1, k, stop_below, not self._priced, self._costs, sampler.refused, self._ends_at)

    def _wants_all(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> bool:
        return not stop_below and sampler.only_refuses(range(len(ids), len(ids) + k))

    def _grown(
        self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor | None, sampler: Sampler
    ) -> Draft:
        """Drafts a chain. The tokens stay on the device until all are drafted, unless a choice depends on the text or
        the q of those before it."""
        one_by_one = stop_below > 0 or sampler.reads_text
        choose = DraftChoice(self._vocab_size, sampler)
        draft_ids = self._branches.draft_ids
        if logits is None:
            assert self._branches.captured, "drafts are captured"
            whole = choose.chain(k, self._branches.captured)
            rated = self._branches.confidence
            return self._draft([whole], _read([whole], [] if rated is None else [rated]), stop_below)
        if isinstance(self._branches, ParallelBranches) and not sampler.reads_text:
            whole = choose(ids, self._branches.positions[:k], draft_ids)
            return self._draft([whole], _read([whole], []), stop_below)
        chosen = list[Chosen]()
        confidences = []
        drafted: list[tuple[int, float, float]] = []  # each with its q and its confidence
        while len(chosen) < k and not self._ends(drafted, stop_below):
            if chosen:
                logits = self._branches.grow(chosen[-1].ids, [0])
            confidence = self._branches.confidence
            if confidence is not None:
                if stop_below > 0 and self._chance(drafted) * float(confidence[0]) < stop_below:
                    break
                confidences.append(confidence)
            text = [*ids, *(id_ for id_, *_ in drafted), *[UNREAD] * (len(chosen) - len(drafted))]
            chosen.append(choose(text, logits, draft_ids, len(chosen)))
            if one_by_one or len(chosen) == k:
                drafted += _read(chosen[len(drafted) :], confidences[len(drafted) :])
        return self._draft(chosen, drafted, stop_below)

    def _draft(self, chosen: Sequence[Chosen], drafted: Sequence[tuple[int, float, float]], stop_below: float) -> Draft:
        ends = (i for i in range(1, len(drafted)) if self._ends(drafted[:i], stop_below))
        drafted = drafted[: next(ends, len(drafted))]
        sampled_from = [choice.probabilities for choice in chosen if choice.probabilities is not None]
        return Draft(
            [id_ for id_, *_ in drafted],
            [q for _, q, _ in drafted],
            torch.cat(sampled_from)[: len(drafted)] if sampled_from else None,
            candidates=[row for choice in chosen for row in choice.candidates][: len(drafted)],
            draft_ids=self._branches.draft_ids,
            confidences=None if self._branches.confidence is None else [confidence for *_, confidence in drafted],
        )

    def _ends(self, drafted: Sequence[tuple[int, float, float]], stop_below: float) -> bool:
        """Returns whether nothing is drafted after these tokens: after an end of text; where the chance to get there is
        below `stop_below` or the cost of a further token; or, without costs, after a q below `stop_below` if there is
        no confidence head."""
        if not drafted or drafted[-1][0] in self._eos_ids:
            return bool(drafted)
        n = len(drafted)
        if self._priced:
            return self._chance(drafted) < max(stop_below, self._cost(n + 2) - self._cost(n + 1))
        return self._branches.confidence is None and drafted[-1][1] < stop_below

    def _chance(self, drafted: Sequence[tuple[int, float, float]]) -> float:
        """Returns the chance that all these tokens are accepted, by the drafter; 1 without costs."""
        if not self._priced:
            return 1.0
        return math.prod(q if self._branches.confidence is None else confidence for _, q, confidence in drafted)


def _read(chosen: Sequence[Chosen], confidences: Sequence[torch.Tensor]) -> list[tuple[int, float, float]]:
    """Reads the ids, q and confidences (0 without a head) in one transfer."""
    rows = torch.cat([choice.read for choice in chosen])
    if confidences:
        rows = torch.cat([rows, torch.cat(list(confidences))[:, None]], dim=1)
    return [(int(id_), q, *confidence) if confidence else (int(id_), q, 0.0) for id_, q, *confidence in rows.tolist()]


def branches_of(setup: Setup) -> Branches:
    """Makes the `Branches` of the network or the model that was loaded for the lane."""
    kind = setup.models.pair.drafts_by(setup.lane.drafter)
    assert kind, "what is loaded is of a kind of weights that the pair names"
    method = METHODS[kind]
    grown = method.resolve(method.branches)
    return grown(setup) if method.weights == "model" else grown(setup.network, setup.target)


def build_chain(setup: Setup) -> ChainDrafter:
    return ChainDrafter(branches_of(setup), setup.target.vocab_size, setup.eos_ids, *setup.priced)
