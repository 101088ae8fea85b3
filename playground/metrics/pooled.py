"""Statistics of speed-ups over several prompts, and over several runs of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

LEVEL = 0.95
LEAST_PROMPTS = 8  # the fewest prompts for an interval over prompts
LEAST_FREEDOM = 2  # the least prompts × (runs - 1) for an interval over runs


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper one. `values`: at least one."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


@cache
def quantile(freedom: float, comparisons: int = 1) -> float:
    """Return half the width of Student's interval at LEVEL in standard errors. `comparisons`: among how many the value
    is chosen or named; the interval holds for all of them together (Bonferroni)."""
    from scipy import stats  # takes seconds

    return float(stats.t.ppf(1 - (1 - LEVEL) / comparisons / 2, freedom))


@dataclass(frozen=True)
class Timed:
    """One prompt through one lane: the tokens and the seconds of each run."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]


Over = Literal["prompts", "runs"]


@dataclass(frozen=True)
class Pooled:
    """The pooled speed-up of several prompts. `speedup`: the ratio of the lanes' times per token, all time over all
    tokens, so that long answers count more. `interval`: its Student interval. `over` says what varies: prompts (what
    other prompts of the kind would give) or, where they are too few, the runs of each (what the same prompts would give
    again). Both are None where there is too little of either."""

    speedup: float
    interval: tuple[float, float] | None = None
    over: Over | None = None


def pooled(base: Sequence[Timed], other: Sequence[Timed], comparisons: int = 1) -> Pooled:
    """Return the pooled speed-up. `base[i]` and `other[i]` are prompt i, with the same number of runs; run j of both
    belong together.

    The interval is that of the logarithm of the ratio, which the delta method makes a mean: each part deviates from it
    by its shares of the times and tokens of both lanes (Cochran 1977, 6.4).

    Args:
        comparisons: see `quantile`.
    """
    base_s, base_tokens, seconds, tokens = (
        np.array(rows, dtype=float)
        for lane in (base, other)
        for rows in ([timed.seconds for timed in lane], [timed.tokens for timed in lane])
    )
    ratio = float(base_s.sum() / base_tokens.sum() / (seconds.sum() / tokens.sum()))
    base_share, share = base_s / base_s.sum(), seconds / seconds.sum()  # of the time: (prompts, runs)
    parts = base_share - base_tokens / base_tokens.sum() - share + tokens / tokens.sum()
    prompts, runs = parts.shape
    over: Over
    if prompts >= LEAST_PROMPTS:
        over, (error, freedom) = "prompts", _of_prompts(parts.sum(1), (base_share + share).sum(1) / 2)
    elif prompts * (runs - 1) >= LEAST_FREEDOM:
        over, (error, freedom) = "runs", _of_runs(parts, np.hypot(base_share.sum(1), share.sum(1)))
    else:
        return Pooled(ratio)
    margin = error * quantile(freedom, comparisons)
    return Pooled(ratio, (ratio * math.exp(-margin), ratio * math.exp(margin)), over)


@dataclass(frozen=True)
class Uncertain:
    """The standard error of the logarithm of a lane's time per token over its answers, and its degrees of freedom."""

    error: float
    freedom: float


def uncertain(answers: Sequence[tuple[int, float]]) -> Uncertain | None:
    """Return the standard error by the delta method, as in `pooled`; None for too few answers. `answers`: the tokens
    and seconds of each."""
    if len(answers) < LEAST_PROMPTS:
        return None
    tokens, seconds = np.array(answers, dtype=float).T
    share = seconds / seconds.sum()
    return Uncertain(*_of_prompts(share - tokens / tokens.sum(), share))


def unpaired(ratio: float, base: Uncertain | None, other: Uncertain | None) -> tuple[float, float] | None:
    """Return Welch's interval of a ratio of two lanes that have different answers; None where one has no standard
    error."""
    if base is None or other is None:
        return None
    error = math.hypot(base.error, other.error)
    freedom = error**4 / sum(it.error**4 / it.freedom for it in (base, other)) if error else 1.0
    margin = error * quantile(freedom)
    return ratio * math.exp(-margin), ratio * math.exp(margin)


def macro(speedups: Sequence[float]) -> float:
    """Return the geometric mean over prompts: each counts the same, and 2 and 1/2 cancel out."""
    return math.exp(statistics.fmean(map(math.log, speedups)))


def differs(interval: tuple[float, float] | None) -> bool:
    """Return True if the interval of a ratio excludes 1: a difference was seen."""
    return interval is not None and not interval[0] <= 1 <= interval[1]


def _of_prompts(parts: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the standard error over prompts, and its degrees of freedom: Student's, n - 1, if all weigh the same.
    Prompts that take longer decide more and pull the ratio towards themselves, so their parts count as larger (HC2),
    and there are fewer degrees of freedom, by Satterthwaite's formula (Bell and McCaffrey 2002).

    Args:
        parts: (prompts,); their sum is 0.
        weights: (prompts,); how much each decides; their sum is 1.
    """
    freedom = (weights**2).sum() ** 2 / (weights**4).sum() * (1 - 1 / len(parts))
    return math.sqrt((parts**2 / (1 - weights)).sum()), max(1.0, float(freedom))


def _of_runs(parts: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the standard error over the runs of each prompt, and its degrees of freedom. A run's deviation from the
    mean of its prompt, in proportion to the prompt's weight, is noise of the machine and assumed alike for all prompts.

    Args:
        parts: (prompts, runs).
        weights: (prompts,).
    """
    prompts, runs = parts.shape
    freedom = prompts * (runs - 1)
    noise = (parts - parts.mean(1, keepdims=True)) * runs / weights[:, None]
    return math.sqrt((noise**2).sum() / freedom * (weights**2).sum() / runs), freedom
