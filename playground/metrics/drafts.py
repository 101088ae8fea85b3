"""The draft tokens of a lane: acceptance by position, ranks of rejected ones, the calibration of the drafter's q, and
tokens per pass estimated from drafts over an existing text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AliasChoices, Field

from playground.metrics.lane import added, positions
from playground.trace import Round, Trace, once

JUDGED = 20  # first draft tokens that are enough to suspect a drafter


@dataclass(frozen=True)
class PositionAcceptance:
    """Acceptance at one position of the draft (1 is the first). Tokens of a tree that are equally deep share a
    position, and at most one of them is accepted.

    `drafted`: rounds that drafted this position. `reached`: rounds that accepted a token at every position before it
    and drafted on from there. `accepted`: rounds that accepted a token here. accepted / reached is the conditional
    acceptance, accepted / drafted the unconditional one.
    """

    position: int
    drafted: int
    reached: int
    accepted: int


def acceptance_by_position(rounds: Sequence[Round]) -> list[PositionAcceptance]:
    """Return acceptance at each position that was drafted."""
    drafted: Counter[int] = Counter()
    reached: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for round_ in rounds:
        decisions = list(zip(positions(round_.drafted), (token.decision for token in round_.drafted), strict=True))
        drafted.update({at for at, _ in decisions})
        reached.update({at for at, decision in decisions if decision != "unverified"})
        accepted.update({at for at, decision in decisions if decision == "accepted"})
    return [PositionAcceptance(at, drafted[at], reached[at], accepted[at]) for at in sorted(drafted)]


def add_positions(several: Iterable[Sequence[PositionAcceptance]]) -> list[PositionAcceptance]:
    """Add up acceptance by position over several runs."""
    sums: dict[int, list[PositionAcceptance]] = {}
    for each in itertools.chain.from_iterable(several):
        sums.setdefault(each.position, []).append(each)
    return [added(PositionAcceptance, sums[at], position=at) for at in sorted(sums)]


def wilson(accepted: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the chance with which tokens are accepted, of which `accepted` of `n` were (Wilson
    1927)."""
    from scipy import stats  # takes seconds

    found = stats.binomtest(accepted, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def first_of_chance(trace: Trace) -> tuple[int, int] | None:
    """Return how many first draft tokens were accepted, and of how many, where that is no larger a share than the
    output's most frequent token has, so that always drafting this token would do as well. None where it is larger, or
    in fewer than `JUDGED` drafts."""
    first = next((it for it in acceptance_by_position(trace.rounds) if it.position == 1), None)
    if first is None or first.reached < JUDGED:
        return None
    ((_, most),) = Counter(token.id for token in trace.tokens).most_common(1)
    return (first.accepted, first.reached) if first.accepted / first.reached <= most / len(trace.tokens) else None


def out_of_context(rounds: Sequence[Round]) -> bool:
    """Return True if nothing was ever drafted, because the text was too long for the drafter's context."""
    return any(round_.past_context is not None for round_ in rounds) and not any(round_.drafted for round_ in rounds)


@dataclass(frozen=True)
class BothRules:
    """Sampled drafts under both exact rules, with the same random numbers. `accepted`: tokens that the lane's rule
    accepted; `other_rule`: those that the other rule would have accepted."""

    drafts: int
    accepted: Annotated[int, Field(validation_alias=AliasChoices("accepted", "kept"))]  # in older files
    other_rule: Annotated[int, Field(validation_alias=AliasChoices("other_rule", "otherwise"))]

    @property
    def gain(self) -> float:
        """Additional tokens a draft that the other rule would have accepted."""
        return (self.other_rule - self.accepted) / self.drafts


def both_rules(rounds: Iterable[Round]) -> BothRules | None:
    """Compare both exact rules on the same drafts; None where no draft was sampled."""
    found = [(len(r.accepted), r.other_rule) for r in rounds if r.other_rule is not None]
    if not found:
        return None
    return BothRules(len(found), sum(accepted for accepted, _ in found), sum(other for _, other in found))


def add_both_rules(several: Iterable[BothRules | None]) -> BothRules | None:
    """Add up the drafts of several runs; None where none was sampled."""
    known = [each for each in several if each]
    return added(BothRules, known) if known else None


@dataclass(frozen=True)
class Ranks:
    """The rank of the target's own token among the drafter's candidates, over the rounds that ended in a rejection and
    whose drafter scores candidates: would a wider draft have contained it? `best`: it ranked first, but another token
    was sampled."""

    rejections: int
    best: int
    second: int
    third_to_eighth: int
    further: int
    never: int


def ranks(rounds: Sequence[Round]) -> Ranks:
    """Return the ranks of the target's tokens at rejections."""
    found = [r.target.rank for r in rounds if r.target and r.target.rank is not None]
    within = lambda low, high: sum(low <= rank <= high for rank in found)  # noqa: E731
    return Ranks(
        rejections=len(found),
        best=within(1, 1),
        second=within(2, 2),
        third_to_eighth=within(3, 8),
        further=sum(rank > 8 for rank in found),
        never=within(0, 0),
    )


# Calibration: the drafter's q against what was accepted.


BINS = 10


@dataclass(frozen=True)
class Bin:
    """Draft tokens with a q from `low` to below `high` (1 is in the last bin). `q`: their mean. `accepted`: the share
    that was accepted."""

    low: float
    high: float
    tokens: int
    q: float
    accepted: float


@dataclass(frozen=True)
class Calibration:
    """The drafter's q as a forecast of acceptance, over draft tokens that were accepted or rejected.

    Attributes:
        position: in the draft, from 1; None for all together.
        tokens: their number.
        q: their mean q; `accepted`: the share of them that was accepted. Equal if q is right on the whole.
        ece: expected calibration error (Naeini et al. 2015): |accepted - q| of each of ten bins of q, weighted by its
            tokens. 0 is perfect.
        brier: mean of (q - accepted)², with accepted 1 or 0 (Brier 1950). 0 is perfect; a constant forecast of the mean
            gets accepted · (1 - accepted).
        bins: those that hold tokens.
    """

    position: int | None
    tokens: int
    q: float
    accepted: float
    ece: float
    brier: float
    bins: tuple[Bin, ...]


@once
def calibration(trace: Trace) -> Sequence[Calibration]:
    """Return the calibration over all draft tokens, then by position; empty where none has a q or none was judged, and
    where verdicts were drawn. A lookup's q is 1. For a sampled token, q is the chance to draw it; the chance that it is
    accepted is min(1, p / q)."""
    found: dict[int, list[tuple[float, bool]]] = {}
    for round_ in () if trace.lane.forced_rates else trace.rounds:
        for position, token in zip(positions(round_.drafted), round_.drafted, strict=True):
            if token.q is not None and token.decision != "unverified":
                found.setdefault(position, []).append((token.q, token.decision == "accepted"))
    if not found:
        return []
    everything = [each for at in found.values() for each in at]
    return [_calibration(None, everything), *(_calibration(at, found[at]) for at in sorted(found))]


def _calibration(position: int | None, forecasts: Sequence[tuple[float, bool]]) -> Calibration:
    n = len(forecasts)
    binned: dict[int, list[tuple[float, bool]]] = {}
    for q, accepted in forecasts:
        binned.setdefault(min(int(q * BINS), BINS - 1), []).append((q, accepted))
    bins = tuple(Bin(i / BINS, (i + 1) / BINS, len(binned[i]), *_means(binned[i])) for i in sorted(binned))
    return Calibration(
        position,
        n,
        *_means(forecasts),
        ece=sum(each.tokens / n * abs(each.accepted - each.q) for each in bins),
        brier=sum((q - accepted) ** 2 for q, accepted in forecasts) / n,
        bins=bins,
    )


def _means(forecasts: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return the mean q and the share of accepted tokens."""
    n = len(forecasts)
    return sum(q for q, _ in forecasts) / n, sum(accepted for _, accepted in forecasts) / n


@dataclass(frozen=True)
class Counts:
    """Drafts over a text, at each of its positions and in the rounds that decoding it would have.

    `reached`: for each depth of a draft, the drafts at all positions whose tokens before it were accepted; `accepted`:
    how many of these had this token accepted. They are the conditional acceptance by depth, not tokens per check.
    `rounds_reached`, `rounds_accepted`: of the rounds alone, each of which starts after the token that the target added
    to the one before; the prefill is one. `agreed`: those of the text's `tokens` that are the target's own choice.
    """

    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    rounds_reached: tuple[int, ...]
    rounds_accepted: tuple[int, ...]
    agreed: int
    tokens: int

    @property
    def gains(self) -> list[float]:
        """The tokens per check that each depth of a draft adds: Π_i≤j α_i, where α_i is the share of rounds that
        reached depth i which had it accepted. Where none reached it, the share of the depth before is carried on."""
        gains, survives, share = list[float](), 1.0, 0.0
        for reached, accepted in zip(self.rounds_reached, self.rounds_accepted, strict=True):
            share = accepted / reached if reached else share
            survives *= share
            gains.append(survives)
        return gains

    @property
    def tokens_per_pass(self) -> float:
        """The mean accepted length of decoding. It is exact where the text is the target's own, greedy."""
        return 1 + sum(self.gains)

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.tokens if self.tokens else None


def add_counts(several: Iterable[Counts]) -> Counts:
    """Add up the counts of one text or more, with drafts of one length."""
    found = list(several)
    return Counts(
        _sums(it.reached for it in found),
        _sums(it.accepted for it in found),
        _sums(it.rounds_reached for it in found),
        _sums(it.rounds_accepted for it in found),
        sum(it.agreed for it in found),
        sum(it.tokens for it in found),
    )


def _sums(by_depth: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*by_depth, strict=True)))


# Tokens per pass and standard errors from which on one reading of a drafter is called better.
GAIN, SIGMAS = 0.1, 4.0
IF_DOUBTED = 0.0, 2.0


def clearly_better(a: Counts, b: Counts, doubted: bool = False) -> bool:
    """Return True if a drafter's drafts `a` are better than `b`, over the same texts, by more than chance among a dozen
    comparisons: in tokens per pass, and in acceptance at one position at least (as of independent samples, although
    they share their texts, which errs towards False). `doubted`: something else speaks against `b`, and less will do.
    """
    gain, sigmas = IF_DOUBTED if doubted else (GAIN, SIGMAS)
    if a.tokens_per_pass - b.tokens_per_pass < gain:
        return False
    return any(_sigmas(*each) > sigmas for each in zip(a.accepted, a.reached, b.accepted, b.reached, strict=True))


def _sigmas(x: int, n: int, y: int, m: int) -> float:
    """Return the difference of two shares in standard errors."""
    if not n or not m:
        return 0.0
    p = (x + y) / (n + m)
    return (x / n - y / m) / (p * (1 - p) * (1 / n + 1 / m)) ** 0.5 if 0 < p < 1 else 0.0
