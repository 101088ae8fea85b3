"""Several prompts, and several runs of each, taken together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

RESAMPLES = 2000
LEAST_PROMPTS = 8  # that an interval over prompts takes
LEAST_FREEDOM = 4  # prompts × (runs - 1), that an interval over runs takes


@dataclass(frozen=True)
class Spread:
    """The median of some values, and their quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """`values`: at least one."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return Spread(median, low, high)


@dataclass(frozen=True)
class Timed:
    """One prompt through one lane: the tokens it gave, and the seconds of each run."""

    tokens: int
    seconds: tuple[float, ...]


Resampled = Literal["prompts", "runs"]


@dataclass(frozen=True)
class Pooled:
    """Prompts through two lanes, taken together. `speedup`: the ratio of the pooled time per token, so that long
    answers count more; of several runs of a prompt the median time counts. `interval`: its 95 % bootstrap interval.
    `over` says what was resampled: prompts (what other prompts of the kind would give) or, where they are too few, the
    runs of each (what the same prompts would give again). Both None where there is too little of either."""

    speedup: float
    interval: tuple[float, float] | None = None
    over: Resampled | None = None


def pooled(base: Sequence[Timed], other: Sequence[Timed]) -> Pooled:
    """`base[i]` and `other[i]` are prompt i, with the same number of runs; run j of both belong together, and are drawn
    together."""
    prompts, runs = len(base), len(base[0].seconds)
    overall = float(_ratio(_medians(base), _tokens(base), _medians(other), _tokens(other)))
    if prompts >= LEAST_PROMPTS:
        return Pooled(overall, _interval(_by_prompts(base, other)), "prompts")
    if prompts * (runs - 1) >= LEAST_FREEDOM:
        return Pooled(overall, _interval(_by_runs(base, other)), "runs")
    return Pooled(overall)


def macro(speedups: Sequence[float]) -> float:
    """The geometric mean over prompts: each counts the same, and 2 and 1/2 cancel out."""
    return math.exp(statistics.fmean(map(math.log, speedups)))


def differs(interval: tuple[float, float] | None) -> bool:
    """Whether the interval of a ratio excludes 1: a difference was seen."""
    return interval is not None and not interval[0] <= 1 <= interval[1]


def _by_prompts(base: Sequence[Timed], other: Sequence[Timed]) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    return _ratio(*(column[drawn] for column in (_medians(base), _tokens(base), _medians(other), _tokens(other))))


def _by_runs(base: Sequence[Timed], other: Sequence[Timed]) -> np.ndarray:
    """Draws one run fewer than there are, of each prompt: with few runs, drawing all would understate the variance by
    (runs - 1) / runs (McCarthy and Snowden 1985)."""
    runs = len(base[0].seconds)
    drawn = np.random.default_rng(0).integers(0, runs, (RESAMPLES, len(base), runs - 1))
    medians = (
        np.median(np.take_along_axis(np.array([[timed.seconds for timed in lane]]), drawn, axis=2), axis=2)
        for lane in (base, other)
    )
    base_s, seconds = medians
    return _ratio(base_s, _tokens(base), seconds, _tokens(other))


def _ratio(base_s: np.ndarray, base_tokens: np.ndarray, seconds: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The ratio of times per token, pooled over the last axis."""
    return (base_s.sum(-1) / base_tokens.sum(-1)) / (seconds.sum(-1) / tokens.sum(-1))


def _medians(lane: Sequence[Timed]) -> np.ndarray:
    return np.median(np.array([timed.seconds for timed in lane], dtype=float), axis=1)


def _tokens(lane: Sequence[Timed]) -> np.ndarray:
    return np.array([timed.tokens for timed in lane], dtype=float)


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
