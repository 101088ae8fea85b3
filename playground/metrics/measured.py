"""A comparison measured once for every view: the run shown of each lane, its speed-up, the interval, and the winner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

from playground.metrics.comparison import Equation, FirstDifference, equation, first_difference, speedup
from playground.metrics.lane import measure
from playground.metrics.pooled import Paired, paired, quantile
from playground.metrics.segments import Segment, by_segment
from playground.trace import Comparison, Trace, once

WIDE = 1.25  # the ratio of an interval's ends from which on lanes that took turns run again
FLOOR = 1.05  # the ratio by which two runs of one lane may differ on a quiet machine
MANY = 4  # runs of a lane that are enough to show the noise
USUAL = 0.025  # the prior deviation of a run on a quiet machine
WORTH = 2  # the number of observed deviations that the prior counts as
USUAL_PAIRED, WORTH_PAIRED = 0.02, 8  # the same for the speed-up of two lanes that took turns
Interval = tuple[float, float]
Outcome = Literal["faster", "slower", "unclear"]
Pair = tuple[Trace, Trace, Paired]  # a run of a lane that took turns with another: the other's, its own, the speed-up
Speeds = Mapping[str, Sequence[float]]  # tokens per second of each run, by lane


@dataclass(frozen=True)
class Measured:
    """A lane against the baseline: the view from which the page, the terminal and the files are drawn.

    `base`, `ours`: the run of each that is shown; all other figures are from these two. `speedup`: the ratio of their
    tokens per second, where they took turns as `paired` measures it; None if one has no tokens. `interval`: that of the
    speed-up, from all runs; None if nothing ran again, and lanes did not take turns. `runs`: of the lane; `baselines`:
    of the baseline.
    """

    base: Trace
    ours: Trace
    speedup: float | None
    interval: Interval | None
    runs: int
    baselines: int

    @cached_property
    def equation(self) -> Equation | None:
        return equation(self.base, self.ours, self.speedup if self.ours.schedule == "by turns" else None)

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
    """Return each lane, the baseline too, against the baseline, by name."""
    runs, speeds = _runs(comparison), _speeds(comparison)
    first = comparison.baseline
    taken = {name: _by_turns(pairs) for name, pairs in _pairs(comparison).items() if pairs}
    if taken:
        base = max(taken.values(), key=lambda it: it.speedup or 0.0).base
    else:
        base = runs[first][middle(speeds[first])]
    lanes = dict[str, Measured]()
    for name in runs:
        if name in taken:
            lanes[name] = taken[name]
            continue
        ours = base if name == first else runs[name][middle(speeds[name])]
        over = speedup(base, ours)
        known = over is not None and min(*speeds[first], *speeds[name]) > 0
        spread = interval(speeds, name, first) if known else None
        lanes[name] = Measured(base, ours, over, spread, len(runs[name]), len(runs[first]))
    return lanes


def _by_turns(pairs: Sequence[Pair]) -> Measured:
    """Return a lane that took turns with the baseline, in these runs."""
    base, ours, it = pairs[middle([it.log for _, _, it in pairs])]
    return Measured(base, ours, math.exp(it.log), paired_interval([it for _, _, it in pairs]), len(pairs), len(pairs))


@once
def _pairs(comparison: Comparison) -> dict[str, list[Pair]]:
    """Return what `_paired` gives for each lane and the baseline, by the lane's name."""
    return {trace.lane.name: _paired(comparison, trace.lane.name, comparison.baseline) for trace in comparison.lanes}


def _paired(comparison: Comparison, name: str, over: str) -> list[Pair]:
    """Return the runs in which two lanes took turns, stopped ones only where there are no others; none where one run
    is too short to compare moments."""
    if name == over:
        return []
    pairs = []
    for traces in (comparison.lanes, *comparison.repeats):
        of = {trace.lane.name: trace for trace in traces if trace.schedule == "by turns"}
        if name in of and over in of:
            pairs.append((of[over], of[name], paired(of[over], of[name])))
    whole = [pair for pair in pairs if "stopped" not in (pair[0].finish, pair[1].finish)] or pairs
    known = [(base, ours, it) for base, ours, it in whole if it]
    return known if len(known) == len(whole) else []


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


def interval(speeds: Speeds, ours: str, over: str, comparisons: int = 1) -> Interval | None:
    """Return Student's interval of the ratio of two lanes' speeds; None if no lane ran twice.

    All lanes share the noise of the machine: the deviations of all runs from the mean of their lane, as logarithms. A
    few runs say little about it, so the usual noise of a quiet machine counts as `WORTH` deviations more.

    Args:
        speeds: of all lanes that ran.
        comparisons: see `quantile`.
    """
    logs = {name: [math.log(speed) for speed in runs] for name, runs in speeds.items() if min(runs) > 0}
    freedom = sum(len(runs) - 1 for runs in logs.values())
    if not freedom:
        return None
    squares = sum((value - statistics.fmean(runs)) ** 2 for runs in logs.values() for value in runs)
    noise = math.sqrt((squares + WORTH * USUAL**2) / (freedom + WORTH))
    middle_ = statistics.fmean(logs[ours]) - statistics.fmean(logs[over])
    margin = quantile(freedom + WORTH, comparisons) * noise * math.sqrt(1 / len(logs[ours]) + 1 / len(logs[over]))
    return math.exp(middle_ - margin), math.exp(middle_ + margin)


def segment_speedups(comparison: Comparison, name: str) -> dict[Segment, tuple[float, Interval | None]]:
    """Return the ratio of the tokens per second in each segment that the shown runs of both lanes have, without the
    prefill, and its interval where each run has the segment."""
    of_runs = {lane: [_by_segment(run) for run in runs] for lane, runs in _runs(comparison).items()}
    it = measured(comparison, name)
    base, ours = _by_segment(it.base), _by_segment(it.ours)
    found: dict[Segment, tuple[float, Interval | None]] = {}
    for segment in (it for it in ours if it in base):
        speeds = {lane: [run[segment] for run in runs if segment in run] for lane, runs in of_runs.items()}
        speeds = {lane: each for lane, each in speeds.items() if each}
        found[segment] = ours[segment] / base[segment], interval(speeds, name, comparison.baseline)
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
    """Return the name of the lane that is clearly the fastest; None where there is none, or where it is the
    baseline."""
    lanes = [trace for trace in comparison.lanes if trace.lane.name == comparison.baseline or _competes(trace)]
    if any(trace.finish == "stopped" for trace in lanes):
        return None
    names = [trace.lane.name for trace in lanes]
    by_turns = all(_pairs(comparison)[name] for name in names if name != comparison.baseline)
    found = _first_by_turns(comparison, names) if by_turns else clearly_fastest(_speeds(comparison), names)
    return None if found == comparison.baseline else found


def _first_by_turns(comparison: Comparison, lanes: Sequence[str]) -> str | None:
    """Return like `clearly_fastest` the lane that is clearly the fastest of lanes that took turns; one run of each is
    enough, since the same moments are compared."""
    first = max(lanes, key=lambda name: _lanes(comparison)[name].speedup or 0.0)
    over = [_paired(comparison, first, name) for name in lanes if name != first]
    comparisons = math.comb(len(lanes), 2)
    clear = (pairs and paired_interval([it for _, _, it in pairs], comparisons)[0] > 1 for pairs in over)
    return first if all(clear) else None


def clearly_fastest(speeds: Speeds, lanes: Sequence[str]) -> str | None:
    """Return the lane whose shown run is the fastest, if the intervals of its ratios to all others are above 1.

    Each of the lanes might have looked the fastest, so the intervals hold for all pairs together. It must have run
    twice: a first run may have been chosen for its luck.

    Args:
        speeds: see `interval`.
        lanes: those that compete.
    """
    of = {name: speeds[name][middle(speeds[name])] for name in lanes if min(speeds[name]) > 0}
    if len(of) < 2:
        return None
    first = max(of, key=of.__getitem__)
    over = [interval(speeds, first, name, math.comb(len(of), 2)) for name in of if name != first]
    return first if len(speeds[first]) > 1 and all(it and it[0] > 1 for it in over) else None


def _competes(trace: Trace) -> bool:
    return not (trace.lane.adapter or trace.lane.forced_rates)


@once
def _runs(comparison: Comparison) -> dict[str, list[Trace]]:
    """Return the runs of each lane in order; stopped ones only where there are no others."""
    found: dict[str, list[Trace]] = {trace.lane.name: [] for trace in comparison.lanes}
    for trace in _traces(comparison):
        found[trace.lane.name].append(trace)
    return {name: [run for run in runs if run.finish != "stopped"] or runs for name, runs in found.items()}


def _traces(comparison: Comparison) -> Iterator[Trace]:
    return (trace for traces in (comparison.lanes, *comparison.repeats) for trace in traces)


@once
def _speeds(comparison: Comparison) -> dict[str, list[float]]:
    """Return tokens per second of each run; 0 for a run without tokens, or whose number of tokens is unknown."""
    return {name: [measure(run).tokens_per_s or 0.0 for run in runs] for name, runs in _runs(comparison).items()}


def _by_segment(trace: Trace) -> dict[Segment, float]:
    return {it.segment: it.tokens_per_s for it in by_segment(trace) if it.tokens_per_s}
