"""Tests of whether a lane's output is the target's own.

In greedy decoding: can rounding explain a difference? In sampling: do the tokens follow the target's distribution?
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from playground.metrics.drafts import positions
from playground.trace import DraftToken, Reason, Round, TargetToken

RANKS = (1, 2, 4, 16)  # the last rank of each class of tokens; the tokens after it are one class more
SIGNIFICANCE = 0.001  # the chance at most that an exact lane is called lossy; low, since many lanes are tested
LEVEL = SIGNIFICANCE / 4  # of each test: a lane has four at most (Bonferroni). A p-value below this is a fault
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
    there. `excluded`: its p is 0 by more than rounding does. `left`: the same token in what p leaves to tokens that
    were not drafted there; None where nothing was drafted, or it was this token."""

    rank: int
    chances: tuple[float, ...]
    drafted: tuple[float, ...] = ()
    excluded: bool = False
    left: Placed | None = None

    @classmethod
    def of(cls, best: Sequence[float], index: int, drafted: Sequence[float] = (), *, excluded: bool = False) -> Placed:
        """Classify a token. `best`: p of the likeliest tokens, in order; `index`: of the token among them, or past
        their end."""
        shares = [math.fsum(best[low:high]) for low, high in itertools.pairwise((0, *RANKS))]
        return cls(sum(index >= last for last in RANKS), (*shares, max(0.0, 1 - sum(shares))), tuple(drafted), excluded)


@dataclass(frozen=True)
class LawTest:
    """A test that sampled tokens follow the target's distribution.

    If a lane is exact, a token has rank class c with the chance that p gives c, whatever came before it. So over all
    tokens the counts of the classes, less their expectation, have mean 0 and a covariance that p gives too: their
    squared length in that metric follows the chi-square distribution. A bias that moves probability only between tokens
    of one class is not seen.

    `draws`: tokens tested. `bias`: the total variation distance of the observed classes from the expected ones.
    `smallest_bias`: the probability that must move between classes to be found with a chance of POWER. `excluded`:
    tokens that exact sampling never gives; rounding explains a few (RARE).
    """

    draws: int
    p_value: float
    bias: float
    smallest_bias: float
    excluded: int = 0

    @property
    def passed(self) -> bool:
        return self.p_value >= LEVEL


Logprobs = Literal["raw", "processed", "rounded", "wrong", "none"]
STEPS = (1.0, 0.5, 0.25, 1 / 8, 0.1, 1 / 16, 0.05, 1 / 32, 1 / 64, 0.01)  # decimals, and bfloat16 between 2 and 256
EDGE = 0.01  # of the probability that top-p keeps; rounding moves its edge
RARE = 0.002  # the share of tokens that rounding may move across an edge of top-k or top-p
NEVER = 1e-5  # the same where nothing is rounded anew; two tokens of thousands are a fault
LEAST_ROUNDING = 0.001  # of a log-probability; two passes of a server may agree to the last bit where others do not


@dataclass(frozen=True)
class Scored:
    """A token of a server's sampled answer, and one that the same server drew alone after the same text. `logprobs`: of
    the likeliest tokens there, in order; `token`, `alone`: the places of both tokens among them, or past their end."""

    logprobs: tuple[float, ...]
    token: int
    alone: int

    def placed(self, temperature: float, top_p: float) -> tuple[Placed, Placed]:
        """Return both tokens in the distribution that is sampled from if top-k leaves exactly these tokens."""
        scores = np.array(self.logprobs) / temperature
        p = np.exp(scores - scores.max())
        p /= p.sum()
        before = np.append(np.cumsum(p) - p, 1)
        p[before[:-1] >= top_p] = 0
        best = (p / p.sum()).tolist()
        placed = (Placed.of(best, at, excluded=bool(before[at] >= top_p + EDGE)) for at in (self.token, self.alone))
        return next(placed), next(placed)


@dataclass(frozen=True)
class ServerTest:
    """A test of a server's sampled tokens against tokens drawn alone, by the same server or by another one.

    `logprobs`: what the log-probabilities of the tokens drawn alone are: "raw", of the model; "processed", after
    temperature, top-k and top-p; "rounded" to a step of STEPS; "wrong", neither of the former, since these tokens do
    not follow them: either they are not what is sampled from, or the server samples by other settings than it was
    given. `control`: the test of that. `against`: the test of tokens in whose place a draft was verified. `bonus`: of
    those after a draft that was accepted as a whole. Neither of the two depends on what the log-probabilities are.
    `law`: the test of the former by log-probabilities that the control trusts: it finds less, and also what has no
    part in speculation and escaped the control.
    """

    logprobs: Logprobs
    control: LawTest | None
    law: LawTest | None
    against: LawTest | None
    bonus: LawTest | None


def server_test(verified: Sequence[Scored], bonus: Sequence[Scored], temperature: float, top_p: float) -> ServerTest:
    """Test tokens that a server sampled with as much top-k as tokens were scored."""
    scored, n = [*verified, *bonus], len(verified)
    raw, processed = ([each.placed(*how) for each in scored] for how in ((temperature, top_p), (1.0, 1.0)))
    against, of_bonus = paired_test(raw[:n]), paired_test(raw[n:])
    controls = [law_test([alone for _, alone in placed]) for placed in (raw, processed)]
    name: Logprobs = "rounded" if rounded(scored) else "wrong"
    if name == "wrong":
        given: tuple[Logprobs, ...] = ("raw", "processed")
        for meant, placed, control in zip(given, (raw, processed), controls, strict=True):
            if control is None or control.passed:
                law = law_test([token for token, _ in placed[:n]])
                return ServerTest(meant, control, law, against, of_bonus)
    return ServerTest(name, controls[0], None, against, of_bonus)


def rounded(scored: Sequence[Scored]) -> bool:
    """Return True if all log-probabilities are multiples of one of STEPS."""
    return _step([value for each in scored for value in each.logprobs]) > 0


def _step(values: Sequence[float]) -> float:
    """Returns the largest of STEPS whose multiples all values are, 0 if there is none. A few may be so by chance."""
    steps = (step for step in STEPS if np.allclose(np.array(values) / step, np.round(np.array(values) / step), 0, 1e-3))
    return next(steps, 0.0) if len(values) >= RANKS[-1] else 0.0


def near_tie_of(cached: Mapping[int, float], fresh: Mapping[int, float], chosen: int, other: int) -> NearTie:
    """Compare two tokens by a server's log-probabilities of the likeliest tokens at their place, from two passes that
    differ by rounding alone. A token that is not among them counts as the last of them.

    The two passes may agree to the last bit where passes of other widths do not. A server that works in bfloat16 shows
    it: its logits, and so the differences of its log-probabilities, are multiples of a step, and rounding moves them by
    about one.
    """
    least = min(cached.values())
    apart = [cached[id_] - fresh[id_] for id_ in cached.keys() & fresh.keys()]
    mine = cached.get(other, least)
    rank = 1 + sum(value > mine for value in cached.values())
    step = _step([value - least for value in cached.values()])
    return NearTie(cached.get(chosen, least), mine, rank, max(float(np.std(apart)), LEAST_ROUNDING, step))


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
        return self.p_value >= LEVEL


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


def reasons(rounds: Sequence[Round]) -> list[Reason | None]:
    """Return for each output token why the target added it; None for an accepted draft token.

    Whether a draft is accepted as a whole is decided before the bonus token is drawn, so bonus tokens follow the
    target's distribution. A corrected token alone does not: it follows what p has over q. Together with the accepted
    ones in places of their own it does, and so they are tested together (`judged`). Where drafts are chosen, it
    follows p without the drafted tokens (`Placed.left`).
    """
    return [token.reason if isinstance(token, TargetToken) else None for each in rounds for token in each.tokens]


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
    found = stats.norm.isf(LEVEL / 2) + stats.norm.ppf(POWER)
    n = len(due)
    return AcceptanceTest(n, accepted / n, sum(due) / n, float(2 * stats.norm.sf(abs(z))), float(found * deviation / n))


def law_test(tokens: Sequence[Placed], rare: float = RARE) -> LawTest | None:
    """Test the distribution of sampled tokens; None if there are too few for two classes. `rare`: the share of excluded
    tokens that rounding explains."""
    from scipy import stats  # takes seconds

    if not tokens:
        return None
    chances = np.array([token.chances for token in tokens])
    chances /= chances.sum(1, keepdims=True)
    seen = np.eye(chances.shape[1])[[token.rank for token in tokens]]
    groups = _groups(chances.sum(0))
    if len(groups) < 2:
        return None
    chances, seen = _merged(groups, chances, seen)
    test = _tested(len(tokens), (seen - chances).sum(0), np.diag(chances.sum(0)) - chances.T @ chances)
    excluded = sum(token.excluded for token in tokens)
    return _with_excluded(test, excluded, float(stats.binom.sf(excluded - 1, len(tokens), rare)))


def paired_test(pairs: Sequence[tuple[Placed, Placed]]) -> LawTest | None:
    """Test that the two tokens of each pair, drawn after the same text, follow one distribution, whichever it is: by
    the classes of their ranks (Stuart 1955, Maxwell 1970), and by how many of each side are excluded. None if there are
    too few for two classes."""
    from scipy import stats  # takes seconds

    if not pairs:
        return None
    ones = np.eye(len(RANKS) + 1)
    first, second = (ones[[pair[i].rank for pair in pairs]] for i in (0, 1))
    groups = _groups((first + second).sum(0) / 2)
    if len(groups) < 2:
        return None
    first, second = _merged(groups, first, second)
    apart = first - second
    covariance = apart.T @ apart
    if np.linalg.matrix_rank(covariance) < len(groups) - 1:
        return None
    test = _tested(len(pairs), apart.sum(0), covariance)
    excluded, theirs = (sum(pair[i].excluded for pair in pairs) for i in (0, 1))
    return _with_excluded(test, excluded, float(stats.binom.sf(excluded - 1, excluded + theirs, 0.5)))


def _with_excluded(test: LawTest, excluded: int, p_value: float) -> LawTest:
    """Add the test, with this p-value, that there are not too many excluded tokens."""
    if not excluded:
        return test
    return replace(test, p_value=min(1.0, 2 * min(test.p_value, p_value)), excluded=excluded)


def two_sample_test(samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> LawTest | None:
    """Test that two lanes write the same texts equally often. `samples`: for each prompt, the texts of both lanes. A
    text that is too seldom to be a class counts by its longest beginning that is not. None if there are too few for
    two classes."""
    from scipy import stats  # takes seconds

    statistic, freedom, n, bias = 0.0, 0, 0, 0.0
    for ours, theirs in samples:
        begins = _beginnings([*ours, *theirs])
        first, second = (Counter(begins[text] for text in of) for of in (ours, theirs))
        classes = [*(first.keys() | second.keys())]
        table = np.array([[of[each] for each in classes] for of in (first, second)])
        n += len(ours)
        if table.shape[1] > 1 and len(ours) and len(theirs):
            expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
            statistic += float(((table - expected) ** 2 / expected).sum())
            freedom += table.shape[1] - 1
            bias += float(np.abs(table[0] / len(ours) - table[1] / len(theirs)).sum() / 2 * len(ours))
    if not freedom:
        return None
    # A shift of δ between halves of the texts has a noncentrality of 2 n δ².
    smallest = math.sqrt(_noncentrality(freedom) / (2 * n))
    return LawTest(n, float(stats.chi2.sf(statistic, freedom)), bias / n, smallest)


def _beginnings(texts: Sequence[str]) -> dict[str, str]:
    """Return the class of each text: the longest beginning that enough of the texts have which are in no class yet."""
    found: dict[str, str] = {}
    for length in range(max(map(len, texts)), -1, -1):
        left = [text for text in texts if text not in found]
        times = Counter(text[:length] for text in left)
        found |= {text: text[:length] for text in left if times[text[:length]] >= 2 * LEAST_EXPECTED}
    return dict.fromkeys(texts, "") | found


def _merged(groups: Sequence[Sequence[int]], *of: np.ndarray) -> tuple[np.ndarray, ...]:
    """Add up the columns of each group."""
    return tuple(np.stack([each[:, group].sum(1) for group in groups], axis=1) for each in of)


def _tested(n: int, excess: np.ndarray, covariance: np.ndarray) -> LawTest:
    """Test that the counts of n tokens by class exceed their expectation by chance alone. `covariance`: of the
    counts."""
    from scipy import stats  # takes seconds

    freedom = len(excess) - 1
    statistic = float(excess[1:] @ np.linalg.solve(covariance[1:, 1:], excess[1:]))
    # A shift of δ between a set of classes and the others has a noncentrality of at least n δ² / variance of the set.
    sets = np.array(list(itertools.product((0, 1), repeat=len(excess))))
    widest = float(np.einsum("si,ij,sj->s", sets, covariance, sets).max())
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

    bound = stats.chi2.isf(LEVEL, freedom)
    return float(optimize.brentq(lambda x: stats.ncx2.sf(bound, freedom, x) - POWER, 1e-3, 200))
