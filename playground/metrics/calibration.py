"""Is the drafter's confidence worth anything? Its q against what was accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from playground.metrics.drafts import positions
from playground.trace import Round

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Draft tokens with a q from `low` to below `high` (1 is in the last bin). `q`: their mean. `accepted`: the share
    of them that was."""

    low: float
    high: float
    tokens: int
    q: float
    accepted: float


@dataclass(frozen=True)
class Calibration:
    """q as a forecast of acceptance, over draft tokens that were accepted or rejected.

    Attributes:
        position: in the draft, from 1; None for all together.
        tokens: how many.
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


def calibration(rounds: Iterable[Round]) -> list[Calibration]:
    """Over all draft tokens, then by position; empty where none has a q or none was judged. A lookup's q is 1. Of a
    token that was sampled, q is the chance to draw it; the chance that it is accepted is min(1, p / q)."""
    found: dict[int, list[tuple[float, bool]]] = {}
    for round_ in rounds:
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
    """Of q, and of what was accepted."""
    n = len(forecasts)
    return sum(q for q, _ in forecasts) / n, sum(accepted for _, accepted in forecasts) / n
