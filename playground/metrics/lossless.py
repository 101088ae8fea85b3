"""Tests of whether a lane's output is the target's own.

In greedy decoding: can rounding explain a difference? In sampling: do the tokens follow the target's distribution?
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playground.metrics.drafts import positions
from playground.trace import DraftToken, Round

RANKS = (1, 2, 4, 16)  # the last rank of each class of tokens; the tokens after it are one class more
SIGNIFICANCE = 0.001  # a p-value below this is a fault; low, since many lanes are tested
POWER = 0.8  # the chance to find the smallest bias that is reported
LEAST_EXPECTED = 5  # tokens in a class, for the chi-square distribution to hold
DEVIATIONS = 4  # standard deviations of rounding up to which a difference counts as a tie


@dataclass(frozen=True)
class NearTie:
    """A position where a lane wrote another token than standard decoding: how close was the choice?

    `chosen`, `other`: the target's logits of the two tokens. `rank`: the other token's, 2 if they are the two best.
    `rounding`: the effect of rounding on a logit here, as the standard deviation over the vocabulary of the difference
    between a pass over the whole text and standard decoding's passes over one token each; at least that of rounding a
    logit of this size once, 1 / √12 of a unit in the last place of the model's number format.
    """

    chosen: float
    other: float
    rank: int
    rounding: float

    @property
    def margin(self) -> float:
        return abs(self.chosen - self.other)

    @property
    def in_roundings(self) -> float:
        """The margin in standard deviations of rounding."""
        return self.margin / self.rounding

    @property
    def tie(self) -> bool:
        """True where rounding explains the difference. Two logits, each off by `rounding` between the lanes, differ
        from one another by √2 times as much; four standard deviations of that are allowed."""
        return self.in_roundings <= DEVIATIONS * math.sqrt(2)


@dataclass(frozen=True)
class Placed:
    """A sampled token against the target's distribution p at its position. `rank`: the class of its rank (see RANKS),
    from 0. `chances`: the probability of each class; they add up to 1. `drafted`: p of each token that was drafted
    there."""

    rank: int
    chances: tuple[float, ...]
    drafted: tuple[float, ...] = ()

    @classmethod
    def of(cls, best: Sequence[float], index: int, drafted: Sequence[float] = ()) -> Placed:
        """Classify a token. `best`: p of the likeliest tokens, in order; `index`: of the token among them, or past
        their end."""
        shares = [sum(best[low:high]) for low, high in itertools.pairwise((0, *RANKS))]
        return cls(sum(index >= last for last in RANKS), (*shares, max(0.0, 1 - sum(shares))), tuple(drafted))


@dataclass(frozen=True)
class LawTest:
    """A test that sampled tokens follow the target's distribution.

    If a lane is exact, a token has rank class c with the chance that p gives c, whatever came before it. So over all
    tokens the counts of the classes, less their expectation, have mean 0 and a covariance that p gives too: their
    squared length in that metric follows the chi-square distribution. A bias that moves probability only between tokens
    of one class is not seen.

    `draws`: tokens tested. `bias`: the total variation distance of the observed classes from the expected ones.
    `smallest_bias`: the probability that must move between classes to be found with a chance of POWER.
    """

    draws: int
    p_value: float
    bias: float
    smallest_bias: float

    @property
    def passed(self) -> bool:
        return self.p_value >= SIGNIFICANCE


@dataclass(frozen=True)
class AcceptanceTest:
    """A test that draft tokens are accepted as often as the exact rule accepts them.

    A token x that was sampled from q is due to be accepted with probability min(1, p(x) / q(x)), the first of several;
    of tokens that were chosen, one is with the sum of their p. The number accepted, less its expectation, over its
    standard deviation follows the normal distribution.

    `places`: positions where draft tokens were judged. `accepted`, `due`: the shares of them. `smallest_bias`: the
    difference between the two that is found with a chance of POWER.
    """

    places: int
    accepted: float
    due: float
    p_value: float
    smallest_bias: float

    @property
    def passed(self) -> bool:
        return self.p_value >= SIGNIFICANCE


def judged(rounds: Sequence[Round], joint: bool = False) -> list[list[DraftToken]]:
    """Return for each output token the draft tokens that were accepted or rejected in its place.

    Whether there are any is decided before the output token is drawn, so these tokens follow the target's distribution
    as all do; and they are those that a wrong rule changes.

    `joint`: the rule judges a draft as a whole, so that whether a place is reached depends on the tokens after it. Then
    only the first place of each round has its tokens.
    """
    found = []
    for round_ in rounds:
        places: list[list[DraftToken]] = [[] for _ in round_.tokens]
        for position, token in zip(positions(round_.drafted), round_.drafted, strict=True):
            if token.decision != "unverified" and position <= (min(1, len(places)) if joint else len(places)):
                places[position - 1].append(token)
        found += places
    return found


def acceptance_test(
    places: Sequence[Sequence[DraftToken]], tokens: Sequence[Placed], sampled: bool
) -> AcceptanceTest | None:
    """Test the acceptance of draft tokens; None if chance decides nothing. `places`: from `judged`; `tokens`: with p of
    each of those draft tokens. `sampled`: the drafter samples its tokens from its q, rather than choose them."""
    from scipy import stats  # takes seconds

    due, accepted = [], 0
    for drafted, placed in zip(places, tokens, strict=True):
        if not drafted:
            continue
        accepted += any(token.decision == "accepted" for token in drafted[: 1 if sampled else None])
        if sampled:
            due.append(min(1.0, placed.drafted[0] / (drafted[0].q or 1.0)))
        else:
            due.append(min(1.0, sum(placed.drafted)))
    deviation = math.sqrt(sum(chance * (1 - chance) for chance in due))
    if deviation < 1:
        return None
    z = (accepted - sum(due)) / deviation
    found = stats.norm.isf(SIGNIFICANCE / 2) + stats.norm.ppf(POWER)
    n = len(due)
    return AcceptanceTest(n, accepted / n, sum(due) / n, float(2 * stats.norm.sf(abs(z))), float(found * deviation / n))


def law_test(tokens: Sequence[Placed]) -> LawTest | None:
    """Test the distribution of sampled tokens; None if there are too few for two classes."""
    from scipy import stats  # takes seconds

    if not tokens:
        return None
    chances = np.array([token.chances for token in tokens])
    chances /= chances.sum(1, keepdims=True)
    seen = np.eye(chances.shape[1])[[token.rank for token in tokens]]
    groups = _groups(chances.sum(0))
    if len(groups) < 2:
        return None
    chances, seen = (np.stack([of[:, group].sum(1) for group in groups], axis=1) for of in (chances, seen))
    excess = (seen - chances).sum(0)
    covariance = np.diag(chances.sum(0)) - chances.T @ chances
    freedom = len(groups) - 1
    statistic = float(excess[1:] @ np.linalg.solve(covariance[1:, 1:], excess[1:]))
    # A shift of δ between a set of classes and the others has a noncentrality of at least n δ² / variance of the set.
    sets = np.array(list(itertools.product((0, 1), repeat=len(groups))))
    widest = float(np.einsum("si,ij,sj->s", sets, covariance, sets).max())
    n = len(tokens)
    return LawTest(
        draws=n,
        p_value=float(stats.chi2.sf(statistic, freedom)),
        bias=float(np.abs(excess).sum() / 2 / n),
        smallest_bias=math.sqrt(_noncentrality(freedom) * widest) / n,
    )


def _groups(expected: np.ndarray) -> list[list[int]]:
    """Merge neighbouring classes until each group expects enough tokens."""
    groups: list[list[int]] = []
    for i in range(len(expected)):
        if groups and expected[groups[-1]].sum() < LEAST_EXPECTED:
            groups[-1].append(i)
        else:
            groups.append([i])
    if len(groups) > 1 and expected[groups[-1]].sum() < LEAST_EXPECTED:
        last = groups.pop()
        groups[-1] += last
    return groups


def _noncentrality(freedom: int) -> float:
    """Return the noncentrality at which a chi-square variable is significant with a chance of POWER."""
    from scipy import optimize, stats  # takes seconds

    bound = stats.chi2.isf(SIGNIFICANCE, freedom)
    return float(optimize.brentq(lambda x: stats.ncx2.sf(bound, freedom, x) - POWER, 1e-3, 200))
