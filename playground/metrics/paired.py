"""The speed-up of a lane that took turns with another, from the moments that both lived through.

By turns, equal times on the clocks of two lanes were about the same moment. Windows of that time are compared: whatever
else the machine did then, it did to both. So a neighbour's burst does not move the ratio, and the spread over the
windows says how sure it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from playground.metrics.comparison import compared
from playground.trace import Trace

WINDOWS = 10  # of the time that both lanes lived through
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
    """Return the starts of the windows, and how many of them both lanes lived through: the first. None of either where
    that are too few."""
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
