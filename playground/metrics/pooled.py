"""Several requests taken together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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


LEAST = 8  # requests that a bootstrap interval takes


@dataclass(frozen=True)
class Pooled:
    """Several requests through two lanes, taken together. `speedup`: the ratio of the pooled time per token, so that
    long answers count more. `interval`: its 95 % bootstrap interval over requests; None for fewer than LEAST."""

    speedup: float
    interval: tuple[float, float] | None


def pooled(
    base_s: Sequence[float], base_tokens: Sequence[int], seconds: Sequence[float], tokens: Sequence[int]
) -> Pooled:
    """`base_s[i]` and `base_tokens[i]` are those of the baseline on request i, `seconds[i]` and `tokens[i]` those of
    the other lane."""
    columns = [np.array(column, dtype=float) for column in (base_s, base_tokens, seconds, tokens)]
    overall = _pooled_speedup(*columns)
    if len(base_s) < LEAST:
        return Pooled(overall, None)
    from scipy.stats import bootstrap  # takes a second to import

    ends = bootstrap(
        columns, _pooled_speedup, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    ).confidence_interval
    return Pooled(overall, (float(ends.low), float(ends.high)))


def _pooled_speedup(base_s: np.ndarray, base_tokens: np.ndarray, seconds: np.ndarray, tokens: np.ndarray) -> float:
    return float((base_s.sum() / base_tokens.sum()) / (seconds.sum() / tokens.sum()))
