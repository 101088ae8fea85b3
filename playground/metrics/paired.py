"""The speed-up of two lanes that took turns, and how sure it is.

By turns, equal times on the clocks of two lanes were about the same moment, so whatever else the machine did then, it
did to both. When the faster lane ends, the other one has done a share of its own work: the inverse of that share is the
speed-up. The common time is cut into windows of one length, and the spread of the shares over them says how sure it is.
Nothing here tells the lanes apart: exchanged, they give the inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from playground.metrics.comparison import compared
from playground.trace import Trace

WINDOWS = 10  # of the time in which both lanes ran
LEAST = 6  # windows, of two rounds or more
MOST = 1000  # windows of the time in which only one ran
OFTEN = 5  # rounds with as many drafted tokens that are enough to know their usual time
GROWTH, SPREAD = 0.2, 0.3  # the logarithm by which 1,000 tokens of text lengthen a round: prior mean and deviation
SCALE = 0.004  # the least deviation of a window


@dataclass(frozen=True)
class Paired:
    """A speed-up within one run of two lanes.

    Attributes:
        log: its logarithm.
        error: the standard error of that within the run.
        freedom: the degrees of freedom of the standard error.
        cost: the mean time of the other lane's rounds in rounds of the baseline, both without their first.
    """

    log: float
    error: float
    freedom: int
    cost: float


def paired(baseline: Trace, other: Trace) -> Paired | None:
    """Return the speed-up of two lanes that took turns in one run; None for too few rounds, or where a file's rounds
    take no time or are in no order.

    Work is counted in the usual times of rounds, since a lane's rounds draft more or fewer tokens; a round across an
    edge counts in parts. Later rounds read more text, which lengthens them alike in both lanes: the growth is fitted to
    the windows, in which the faster lane is ahead, with a normal prior. The standard error is that of a ratio of sums
    (Cochran 1977, 6.4). The prefill is the same pass in both lanes, unless a first round drafts.
    """
    lanes = compared(baseline, other)
    if min(len(trace.rounds) for trace in lanes) <= 2 * LEAST or not all(trace.tokens for trace in lanes):
        return None
    base, ours = both = _Lane(lanes[0]), _Lane(lanes[1])
    if not (base.timed() and ours.timed()):
        return None
    edges, common = _windows(base, ours)
    windows = common.stop - common.start
    if windows < LEAST:
        return None
    _learn(both, edges)
    work = [lane.within(edges)[common] for lane in both]
    middles = ((edges[1:] + edges[:-1]) / 2)[common]
    growth = _growth(np.log(work[0] / work[1]), ours.position_at(middles) - base.position_at(middles))
    for lane in both:
        lane.usual_s *= np.exp(growth * lane.position[:-1])
    work = [lane.within(edges)[common] for lane in both]
    level = math.log(work[0].sum() / work[1].sum())
    parts = work[0] / work[0].sum() - work[1] / work[1].sum()
    error = math.sqrt((parts**2).sum() * windows / (windows - 1))

    later = base.usual_s.sum() * math.exp(-level / 2), ours.usual_s.sum() * math.exp(level / 2)
    first = base.first_s, ours.first_s
    if not any(trace.rounds[0].drafted for trace in lanes):
        first = (sum(first) / 2,) * 2
    tokens = [len(trace.tokens) for trace in lanes]
    log = math.log(tokens[1] / tokens[0] * (first[0] + later[0]) / (first[1] + later[1]))
    cost = later[1] / len(ours.usual_s) / (later[0] / len(base.usual_s))
    return Paired(log, error, windows - 1, cost)


class _Lane:
    """The rounds of a lane after its first, which lie end to end on its clock.

    Attributes:
        first_s: the time of the first round, with the prefill.
        edges_s: (rounds + 1,); the starts, and the end of the last.
        kind: (rounds,); rounds of one kind drafted about as many tokens.
        position: (rounds + 1,); thousands of tokens before each edge.
        usual_s: (rounds,); what its kind takes where nothing slows it down.
    """

    usual_s: np.ndarray

    def __init__(self, trace: Trace) -> None:
        rounds = trace.rounds
        self.edges_s = np.array([*(it.start_s for it in rounds[1:]), rounds[-1].end_s])
        self.first_s = float(self.edges_s[0])
        self.position = np.cumsum([len(it.tokens) for it in rounds]) / 1000
        drafted = np.array([len(it.drafted) for it in rounds[1:]])
        widths, counts = np.unique(drafted, return_counts=True)
        often = widths[counts >= min(OFTEN, counts.max())]
        self.kind = np.abs(drafted[:, None] - often).argmin(1)

    def timed(self) -> bool:
        """Return whether each round takes time, and begins after the one before."""
        return min(self.first_s, np.diff(self.edges_s).min()) > 0

    def learn(self, edges: np.ndarray, slow: np.ndarray) -> None:
        """Set `usual_s`: the median of each kind.

        Args:
            edges: (windows + 1,); of all windows.
            slow: (windows,); the factor by which each window was slower than usual.
        """
        quiet_s = np.diff(np.interp(self.edges_s, edges, np.cumsum([0, *(np.diff(edges) / slow)])))
        self.usual_s = np.array([np.median(quiet_s[self.kind == kind]) for kind in range(self.kind.max() + 1)])[
            self.kind
        ]

    def within(self, edges: np.ndarray) -> np.ndarray:
        """Return the work done in each window, in usual seconds."""
        return np.diff(np.interp(edges, self.edges_s, np.cumsum([0, *self.usual_s])))

    def lived(self, edges: np.ndarray) -> np.ndarray:
        """Return the seconds of each window in which the lane ran."""
        return np.diff(np.clip(edges, self.edges_s[0], self.edges_s[-1]))

    def position_at(self, seconds: np.ndarray) -> np.ndarray:
        return np.interp(seconds, self.edges_s, self.position)


def _windows(base: _Lane, ours: _Lane) -> tuple[np.ndarray, slice]:
    """Return the edges of windows of one length over all that the lanes ran, and which windows are of their common
    time: none where it has too few rounds."""
    starts = [lane.edges_s[:-1] for lane in (base, ours)]
    begin, end = max(it[0] for it in starts), min(lane.edges_s[-1] for lane in (base, ours))
    rounds = min(int(((it >= begin) & (it < end)).sum()) for it in starts)
    windows = min(WINDOWS, rounds // 2)
    if windows < LEAST:
        return starts[0], slice(0, 0)
    first, last = min(it[0] for it in starts), max(lane.edges_s[-1] for lane in (base, ours))
    inner = np.linspace(begin, end, windows + 1)
    before, after = (_steps(gap, inner[1] - inner[0]) for gap in (begin - first, last - end))
    outer = np.linspace(first, begin, before + 1)[:-1], np.linspace(end, last, after + 1)[1:]
    return np.concatenate([outer[0], inner, outer[1]]), slice(before, before + windows)


def _steps(gap: float, step: float) -> int:
    return min(math.ceil(gap / step), MOST)


def _learn(lanes: tuple[_Lane, _Lane], edges: np.ndarray) -> None:
    """Set the usual times of both lanes, which need the slow windows, which need the usual times."""
    slow = np.ones(len(edges) - 1)
    for _ in range(3):
        for lane in lanes:
            lane.learn(edges, slow)
        lived, work = sum(lane.lived(edges) for lane in lanes), sum(lane.within(edges) for lane in lanes)
        slow = np.divide(lived, work, out=np.ones(len(slow)), where=work > 0)


def _growth(ratios: np.ndarray, ahead: np.ndarray) -> float:
    """Fit ratios = level + growth × ahead, with a prior for the growth, and return it."""
    off, ahead = ratios - ratios.mean(), ahead - ahead.mean()
    scale = max(float(off.std(ddof=1)), SCALE)
    prior = (scale / SPREAD) ** 2
    return float((ahead @ off + GROWTH * prior) / (ahead @ ahead + prior))
