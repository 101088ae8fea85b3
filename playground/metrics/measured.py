"""A comparison measured once for every view: the run shown of each lane, its speed-up, the interval, and the winner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Literal

from playground.metrics.comparison import Equation, FirstDifference, equation, first_difference, whole_run_ratio
from playground.metrics.lane import measure
from playground.metrics.paired import Paired, paired
from playground.metrics.pooled import quantile
from playground.metrics.segments import SEGMENTS, Segment, by_segment
from playground.trace import Comparison, Trace, once

WIDE = 1.25  # the ratio of an interval's ends from which on lanes that took turns run again
FLOOR = 1.05  # the ratio by which two runs of one lane may differ on a quiet machine
MANY = 4  # runs of a lane that are enough to show the noise
USUAL = 0.025  # the prior deviation of a run on a quiet machine
WORTH = 2  # the number of observed deviations that the prior counts as
USUAL_PAIRED, WORTH_PAIRED = 0.02, 8  # the same for the speed-up of two lanes that took turns
Interval = tuple[float, float]
Outcome = Literal["faster", "slower", "unclear"]
Speeds = Mapping[str, Sequence[float]]  # tokens per second of each run, by lane


@dataclass(frozen=True)
class Measured:
    """A lane against the baseline: the view from which the page, the terminal and the files are drawn.

    Attributes:
        base, ours: the run of each that is shown, of one pass: that of the median speed-up.
        shown: the number of that pass, 0 being the first.
        speedup: the ratio of tokens per second, the geometric mean over the passes in which both ran; where they took
            turns, each as `paired` measures it. None if a run has no tokens.
        interval: that of the speed-up; None if nothing ran again, and lanes did not take turns.
        runs: how many passes both lanes ran in.
        cost: the geometric mean of the passes' `Paired.cost`; None where the lanes did not take turns.
    """

    base: Trace
    ours: Trace
    shown: int
    speedup: float | None
    interval: Interval | None
    runs: int
    cost: float | None = None

    @cached_property
    def equation(self) -> Equation | None:
        return equation(self.base, self.ours, self.speedup, self.cost)

    @cached_property
    def whole_run_ratio(self) -> float | None:
        """The ratio of the whole times of the runs that are shown, whatever slowed either."""
        return whole_run_ratio(self.base, self.ours)

    @cached_property
    def difference(self) -> FirstDifference | None:
        return first_difference(self.base, self.ours)

    @property
    def too_short(self) -> bool:
        """Return whether the lanes took turns once, with too few rounds for an interval."""
        return self.interval is None and self.ours.schedule == "by turns" and self.ours is not self.base

    @property
    def outcome(self) -> Outcome | None:
        """The verdict on whether the lane is faster than the baseline; None without a speed-up. For one run each of
        lanes that ran alone, `FLOOR` is taken as the noise. One run by turns with too few rounds to compare moments
        shows no difference. If the first pass ended the output, both lanes did the same work, whatever time it took."""
        if self.speedup is None:
            return None
        if self.too_short:
            return "unclear"
        low, high = self.interval or (self.speedup / FLOOR, self.speedup * FLOOR)
        if low <= 1 <= high or len(self.base.rounds) == len(self.ours.rounds) == 1:
            return "unclear"
        return "faster" if low > 1 else "slower"


def measured(comparison: Comparison, name: str) -> Measured:
    """Compare the lane of this name with the baseline."""
    return _lanes(comparison)[name]


@once
def _lanes(comparison: Comparison) -> dict[str, Measured]:
    """Return each lane against the baseline, by name; the baseline itself as it ran with the fastest of them."""
    over = comparison.baseline
    others = {trace.lane.name: _measured(_met(comparison, trace.lane.name, over)) for trace in comparison.others}
    fastest = max(others.values(), key=lambda it: it.speedup or 0.0)
    alone = Measured(fastest.base, fastest.base, fastest.shown, _ones(fastest.base), None, fastest.runs)
    return {trace.lane.name: others.get(trace.lane.name, alone) for trace in comparison.lanes}


@dataclass(frozen=True)
class _Met:
    """Two lanes in the passes in which both ran.

    Attributes:
        passes: their numbers.
        runs: those of the second lane and of the first.
        paired: what `paired` gives for each; empty where they did not take turns, or a run is too short for it.
        logs: of the ratios of tokens per second; None where a run has no tokens.
        speeds: tokens per second of the runs of all lanes, for the noise.
    """

    passes: Sequence[int]
    runs: Sequence[tuple[Trace, Trace]]
    paired: Sequence[Paired]
    logs: Sequence[float] | None
    speeds: Speeds

    def interval(self, comparisons: int = 1) -> Interval | None:
        """Return the interval of the speed-up, whose middle is the mean of `logs`."""
        if self.paired:
            return paired_interval(self.paired, comparisons)
        spread = noise_of(self.speeds) if self.logs else None
        if self.logs is None or spread is None:
            return None
        deviation, freedom = spread
        margin = quantile(freedom, comparisons) * deviation * math.sqrt(2 / len(self.logs))
        middle_ = statistics.fmean(self.logs)
        return math.exp(middle_ - margin), math.exp(middle_ + margin)


def _met(comparison: Comparison, name: str, over: str) -> _Met:
    """Return the passes in which both lanes ran; those with a stopped run only where there are no others."""
    passes = {}
    for number, traces in enumerate((comparison.lanes, *comparison.repeats)):
        of = {trace.lane.name: trace for trace in traces}
        if name in of and over in of:
            passes[number] = of[over], of[name]
    passes = {i: runs for i, runs in passes.items() if "stopped" not in (it.finish for it in runs)} or passes
    together = [paired(*runs) for runs in passes.values() if all(it.schedule == "by turns" for it in runs)]
    known = [it for it in together if it]
    if len(known) == len(passes):
        return _Met([*passes], [*passes.values()], known, [it.log for it in known], {})
    ratios = [whole_run_ratio(*runs) for runs in passes.values()]
    logs = [math.log(it) for it in ratios if it]
    return _Met([*passes], [*passes.values()], [], logs if len(logs) == len(ratios) else None, _speeds(comparison))


def _measured(met: _Met) -> Measured:
    if met.logs is None:
        return Measured(*met.runs[0], met.passes[0], None, None, len(met.runs))
    at = middle(met.logs)
    speedup = math.exp(statistics.fmean(met.logs))
    cost = math.exp(statistics.fmean(math.log(it.cost) for it in met.paired)) if met.paired else None
    return Measured(*met.runs[at], met.passes[at], speedup, met.interval(), len(met.runs), cost)


def _ones(trace: Trace) -> float | None:
    """Return 1, the speed-up of a run over itself; None if it has no tokens."""
    return whole_run_ratio(trace, trace)


def paired_interval(runs: Sequence[Paired], comparisons: int = 1) -> Interval:
    """Return the interval of a speed-up from runs in which two lanes took turns.

    Two sources of noise add up: that within a run, which the run itself shows, and that between runs, for which the
    usual noise of a quiet machine counts as `WORTH_PAIRED` deviations. The spread of several runs scales both.

    Args:
        comparisons: see `quantile`.
    """
    logs, n = [it.log for it in runs], len(runs)
    middle_ = statistics.fmean(logs)
    within = statistics.fmean(it.error**2 for it in runs)
    margin = statistics.fmean((quantile(it.freedom, comparisons) * it.error) ** 2 for it in runs)
    margin += (quantile(WORTH_PAIRED, comparisons) * USUAL_PAIRED) ** 2
    seen = sum((log - middle_) ** 2 for log in logs) / (within + USUAL_PAIRED**2)
    margin = math.sqrt(margin / n * (seen + WORTH_PAIRED) / (n - 1 + WORTH_PAIRED))
    return math.exp(middle_ - margin), math.exp(middle_ + margin)


def sure(comparison: Comparison) -> bool:
    """Return True if the figures of lanes that took turns need no further run: the interval of the fastest lane is not
    wide, and where several compete, one is clearly the fastest."""
    best, *others = ranked(comparison)
    if best.interval is None:
        return best.speedup is None or len(best.base.rounds) == 1
    low, high = best.interval
    return high / low < WIDE and (not others or leader(comparison) is not None)


@once
def shown(comparison: Comparison) -> Comparison:
    """Return each lane with only the run that is shown."""
    return replace(comparison, lanes=tuple(it.ours for it in _lanes(comparison).values()), repeats=())


def middle(speeds: Sequence[float]) -> int:
    """Return the index of the run that is shown: the median. Of the two in the middle of an even number it is the later
    one, since the lanes that run again are those that were fastest at first, by luck too."""
    order = sorted(range(len(speeds)), key=lambda i: speeds[i])
    return max(order[(len(order) - 1) // 2], order[len(order) // 2])


def noise_of(speeds: Speeds) -> tuple[float, int] | None:
    """Return the standard deviation of the logarithm of a run's speed, and its degrees of freedom; None if no lane ran
    twice.

    All lanes share the noise of the machine: the deviations of all runs from the mean of their lane. A few runs say
    little about it, so the usual noise of a quiet machine counts as `WORTH` deviations more.

    Args:
        speeds: tokens per second of all lanes that ran.
    """
    logs = [[math.log(speed) for speed in runs] for runs in speeds.values() if min(runs) > 0]
    freedom = sum(len(runs) - 1 for runs in logs)
    if not freedom:
        return None
    squares = sum((value - statistics.fmean(runs)) ** 2 for runs in logs for value in runs)
    return math.sqrt((squares + WORTH * USUAL**2) / (freedom + WORTH)), freedom + WORTH


def segment_speedups(comparison: Comparison, name: str) -> dict[Segment, tuple[float, Interval | None]]:
    """Return the ratio of the tokens per second in each segment that both lanes have, without the prefill: the
    geometric mean over the passes in which both ran, and its interval."""
    met = _met(comparison, name, comparison.baseline)
    passes = [(_by_segment(base), _by_segment(ours)) for base, ours in met.runs]
    found: dict[Segment, tuple[float, Interval | None]] = {}
    for segment in SEGMENTS:
        both = [(base[segment], ours[segment]) for base, ours in passes if segment in base and segment in ours]
        if both:
            speeds = dict(zip(("base", "ours"), zip(*both, strict=True), strict=True))
            logs = [math.log(ours / base) for base, ours in both]
            of = _Met(met.passes, met.runs, (), logs, speeds)
            found[segment] = math.exp(statistics.fmean(logs)), of.interval()
    return found


def ranked(comparison: Comparison) -> list[Measured]:
    """Return the lanes other than the baseline, the fastest first; then those without a speed-up, in their order. Lanes
    with an adapted target or drawn verdicts come last."""
    found = [measured(comparison, trace.lane.name) for trace in comparison.others]
    return sorted(found, key=lambda it: (not _competes(it.ours), -(it.speedup or 0.0)))


def noise(comparison: Comparison) -> float | None:
    """Return the largest ratio between the tokens per second of two runs of one lane; None if no lane ran twice."""
    pairs = (pair for speeds in _speeds(comparison).values() for pair in combinations(filter(None, speeds), 2))
    return max((max(pair) / min(pair) for pair in pairs), default=None)


@once
def leader(comparison: Comparison) -> str | None:
    """Return the name of the lane that is clearly the fastest; None where there is none, or where it is the baseline.

    Each of the lanes might have looked the fastest, so the intervals of its ratios to all others are above 1 for all
    pairs of lanes together. Of lanes that ran alone it must have run twice: a first run may have been chosen for its
    luck; one run by turns is enough, since the same moments are compared.
    """
    lanes = [trace for trace in comparison.lanes if trace.lane.name == comparison.baseline or _competes(trace)]
    if any(trace.finish == "stopped" for trace in lanes):
        return None
    speedups = {trace.lane.name: _lanes(comparison)[trace.lane.name].speedup or 0.0 for trace in lanes}
    first = max(speedups, key=speedups.__getitem__)
    if first == comparison.baseline:
        return None
    rivals = [_met(comparison, first, name) for name, speedup in speedups.items() if name != first and speedup]
    if _lanes(comparison)[first].runs == 1 and not all(met.paired for met in rivals):
        return None
    intervals = (met.interval(math.comb(len(rivals) + 1, 2)) for met in rivals)
    return first if all(it and it[0] > 1 for it in intervals) else None


def _competes(trace: Trace) -> bool:
    return not (trace.lane.adapter or trace.lane.forced_rates)


@once
def _speeds(comparison: Comparison) -> dict[str, list[float]]:
    """Return tokens per second of each run of each lane, stopped ones only where there are no others; 0 for a run
    without tokens, or whose number of tokens is unknown."""
    found: dict[str, list[Trace]] = {trace.lane.name: [] for trace in comparison.lanes}
    for trace in chain(comparison.lanes, *comparison.repeats):
        found[trace.lane.name].append(trace)
    whole = {name: [run for run in runs if run.finish != "stopped"] or runs for name, runs in found.items()}
    return {name: [measure(run).tokens_per_s or 0.0 for run in runs] for name, runs in whole.items()}


def _by_segment(trace: Trace) -> dict[Segment, float]:
    return {it.segment: it.tokens_per_s for it in by_segment(trace) if it.tokens_per_s}
