"""Statistics of speed-ups: over several prompts and several runs of each, and of two lanes that took turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from playground.metrics.comparison import compared
from playground.trace import Trace

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


# The speed-up of a lane that took turns with another, from the moments in which both ran. By turns, equal times
# on the clocks of two lanes were about the same moment. Windows of that time are compared: whatever else the machine
# did then, it did to both. So a neighbour's burst does not move the ratio, and the spread over the windows says how
# sure it is.

WINDOWS = 10  # of the time in which both lanes ran
LEAST = 6  # windows, of two rounds or more
MOST = 1000  # windows after the faster lane's end
OFTEN = 5  # rounds with as many drafted tokens that are enough to know their usual time
GROWTH = 0.3  # the prior deviation of the logarithm by which 1,000 tokens of text lengthen a round
SCALE = 0.004  # the least deviation of a window
HUBER = 1.345  # deviations from which on a window counts less


@dataclass(frozen=True)
class Paired:
    """The logarithm of a speed-up, its standard error within the run, and the degrees of freedom of that."""

    log: float
    error: float
    freedom: int


def paired(baseline: Trace, other: Trace) -> Paired | None:
    """Return the speed-up of two lanes that took turns in one run; None for too few rounds, or where a file's rounds
    take no time or are in no order.

    In each window both lanes took so many times their usual time. The logarithm of the ratio of these factors is the
    same in all windows but for noise, and for the text: later rounds read more of it, and the faster lane is ahead. Its
    Huber estimate, with a normal prior for that growth, corrects the ratio of the usual times (Huber 1964; standard
    error: Huber and Ronchetti 2009, 7.6).
    """
    traces = compared(baseline, other)
    if min(len(trace.rounds) for trace in traces) <= 2 * LEAST:
        return None
    base, ours = lanes = _Lane(traces[0]), _Lane(traces[1])
    tokens = [len(trace.tokens) for trace in traces]
    if not (all(tokens) and base.timed() and ours.timed()):
        return None
    edges, common = _windows(base, ours)
    if common < LEAST:
        return None
    for lane in lanes:
        lane.place(edges)
    slow = np.ones(len(edges))
    for _ in range(3):  # the usual times need the slow windows, which need the usual times
        for lane in lanes:
            lane.learn(slow)
        taken, usual = (sum(lane.by_window(of) for lane in lanes) for of in ("seconds", "usual_s"))
        slow = np.divide(taken, usual, out=np.ones(len(edges)), where=usual > 0)
    rounds = [lane.by_window("one")[:common] for lane in lanes]
    both = np.minimum(*rounds) > 0
    if both.sum() < LEAST:
        return None
    factors, positions = (
        [lane.by_window(of)[:common][both] / lane.by_window(per)[:common][both] for lane in lanes]
        for of, per in (("seconds", "usual_s"), ("position", "one"))
    )
    kinds = sum(int(lane.kind.max()) for lane in lanes)
    freedom = max(3, int(both.sum()) - 3 - kinds)
    level, growth, error = _fit(np.log(factors[1] / factors[0]), positions[1] - positions[0], freedom)
    first_s = math.sqrt(base.first_s * ours.first_s)  # the prefill is the same pass in both lanes
    base_s, our_s = (float((lane.usual_s * np.exp(growth * lane.position)).sum()) for lane in lanes)
    log = math.log(tokens[1] / tokens[0] * (base_s + first_s) / (our_s * math.exp(level) + first_s))
    return Paired(log, error, freedom)


class _Lane:
    """The rounds of a lane after its first; arrays have a value a round.

    Attributes:
        first_s: the time of the first round, with the prefill.
        start_s, seconds: start and time.
        kind: rounds of one kind drafted about as many tokens.
        position: thousands of tokens before the round.
        window: the window in which it began, of `windows`.
        usual_s: what its kind takes where nothing slows it down.
    """

    window: np.ndarray
    windows: int
    usual_s: np.ndarray

    def __init__(self, trace: Trace) -> None:
        rounds = trace.rounds
        start_s = np.array([it.start_s for it in rounds])
        seconds = np.array([it.end_s + (it.commit_s or 0.0) for it in rounds]) - start_s
        self.first_s, self.start_s, self.seconds = float(seconds[0]), start_s[1:], seconds[1:]
        self.one = np.ones(len(rounds) - 1)
        self.position = np.cumsum([len(it.tokens) for it in rounds])[:-1] / 1000
        drafted = np.array([len(it.drafted) for it in rounds[1:]])
        widths, counts = np.unique(drafted, return_counts=True)
        often = widths[counts >= min(OFTEN, counts.max())]
        self.kind = np.abs(drafted[:, None] - often).argmin(1)

    def timed(self) -> bool:
        """Return whether each round takes time, and begins after the one before."""
        return min(self.first_s, self.seconds.min(), np.diff(self.start_s).min()) > 0

    def place(self, starts: np.ndarray) -> None:
        """Set `window`. `starts`: of all windows."""
        self.windows = len(starts)
        self.window = np.maximum(np.searchsorted(starts, self.start_s, side="right") - 1, 0)

    def learn(self, slow: np.ndarray) -> None:
        """Set `usual_s`: the median of each kind. `slow`: the factor by which each window was slower than usual."""
        seconds = self.seconds / slow[self.window]
        self.usual_s = np.array([np.median(seconds[self.kind == kind]) for kind in range(self.kind.max() + 1)])[
            self.kind
        ]

    def by_window(self, name: str) -> np.ndarray:
        """Return the sums of an attribute over the rounds of each window."""
        return np.bincount(self.window, getattr(self, name), self.windows)


def _windows(base: _Lane, ours: _Lane) -> tuple[np.ndarray, int]:
    """Return the starts of the windows, and how many of the first ones both lanes ran in. None of either where that are
    too few."""
    few = min(base, ours, key=lambda lane: len(lane.seconds))
    end = min(lane.start_s[-1] + lane.seconds[-1] for lane in (base, ours))
    last = max(lane.start_s[-1] for lane in (base, ours))
    lived = few.start_s[few.start_s < end]
    if len(lived) < 2 * LEAST:
        return lived[:0], 0
    starts = lived[np.arange(WINDOWS) * len(lived) // WINDOWS] if len(lived) >= 2 * WINDOWS else lived[:-1:2]
    step = max((end - starts[0]) / len(starts), (last - end) / MOST)
    return np.concatenate([starts, np.arange(end, last + step, step)]), len(starts)


def _fit(ratios: np.ndarray, ahead: np.ndarray, freedom: int) -> tuple[float, float, float]:
    """Fit ratios = level + growth × ahead. Return level, growth, and the level's standard error."""
    x, prior = np.stack([np.ones(len(ratios)), ahead], 1), np.diag([0.0, GROWTH**-2])
    beta = np.array([np.median(ratios), 0.0])
    for _ in range(20):
        off = ratios - x @ beta
        scale = max(1.4826 * float(np.median(np.abs(off))), SCALE)
        weight = HUBER / np.maximum(np.abs(off / scale), HUBER)
        beta = np.linalg.solve((x.T * weight) @ x / scale**2 + prior, (x.T * weight) @ ratios / scale**2)
    off = (ratios - x @ beta) / scale
    inner, squared = float((np.abs(off) < HUBER).mean()), float((np.clip(off, -HUBER, HUBER) ** 2).mean())
    bread = np.linalg.inv(x.T @ x * inner / scale**2 + prior)
    spread = bread @ (x.T @ x * squared / scale**2 + prior) @ bread
    return float(beta[0]), float(beta[1]), math.sqrt(spread[0, 0] * len(ratios) / freedom)
