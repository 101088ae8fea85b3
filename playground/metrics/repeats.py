"""How far a speed-up varies from run to run, and whether one lane is clearly the fastest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from playground.metrics.comparison import compare, speedup
from playground.metrics.lane import measure
from playground.metrics.segments import Segment, by_segment
from playground.trace import Comparison, Trace

FLOOR = 1.05  # what two runs of one lane may differ by on a quiet machine
MANY = 4  # runs of a lane from which their range alone shows the noise


@dataclass(frozen=True)
class Repeated:
    """The speed-up of a lane over several runs: the median (of an even number the lower of the two in the middle, so
    that it is one run's), the lowest and the highest. `runs`: of the lane; `baselines`: of the baseline."""

    runs: int
    baselines: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class _Pass:
    """A run of the baseline, and the run of a lane that it is compared with, by the number of its pass."""

    base: Trace
    ours: Trace
    number: int

    @property
    def speedup(self) -> float | None:
        return speedup(self.base, self.ours)


def _passes(comparison: Comparison, name: str) -> list[_Pass]:
    """Each run of the baseline, with the lane's run of the same pass or, where the pass left the lane out, with its run
    before."""
    found: list[_Pass] = []
    for number, traces in enumerate((comparison.lanes, *comparison.repeats)):
        by_name = {trace.lane.name: trace for trace in traces}
        base = by_name[comparison.baseline]
        if name in by_name:
            found.append(_Pass(base, by_name[name], number))
        else:
            found.append(replace(found[-1], base=base))
    return found


def beside(comparison: Comparison, name: str) -> Comparison:
    """The baseline and this lane alone. The pass with the median speed-up comes first, so that its tokens, times and
    speed-up are what is shown; the others are the repeats."""
    passes = _passes(comparison, name)
    ranked = sorted((each for each in passes if each.speedup), key=lambda each: each.speedup or 0.0)
    first = ranked[(len(ranked) - 1) // 2] if len(ranked) == len(passes) else passes[0]
    order = [trace.lane.name for trace in comparison.lanes]
    found, used = [], set()
    for each in (first, *(each for each in passes if each is not first)):
        traces = (each.base,) if each.number in used else (each.base, each.ours)
        found.append(tuple(sorted(traces, key=lambda trace: order.index(trace.lane.name))))
        used.add(each.number)
    return Comparison(found[0], comparison.baseline, tuple(found[1:]))


def repeated(comparison: Comparison, other: Trace) -> Repeated | None:
    """None if nothing ran again, or a lane has no tokens."""
    passes = _passes(comparison, other.lane.name)
    known = sorted(each.speedup for each in passes if each.speedup is not None)
    if len(passes) < 2 or len(known) < len(passes):
        return None
    runs = len({each.number for each in passes})
    return Repeated(runs, len(passes), known[(len(known) - 1) // 2], known[0], known[-1])


def headline(comparison: Comparison, other: Trace) -> float | None:
    """The speed-up that is shown of a lane: the median of its runs, where something ran again."""
    repeats = repeated(comparison, other)
    return repeats.median if repeats else compare(comparison.standard, other).speedup


def segment_speedups(comparison: Comparison, other: Trace) -> dict[Segment, list[float]]:
    """The ratios of the tokens per second in each segment that both lanes have, one a run, the lowest first; without
    the prefill, and without runs that lack the segment in a lane."""
    found: dict[Segment, list[float]] = {}
    for each in _passes(comparison, other.lane.name):
        base = {it.segment: it.tokens_per_s for it in by_segment(each.base)}
        for it in by_segment(each.ours):
            if (before := base.get(it.segment)) and it.tokens_per_s:
                found.setdefault(it.segment, []).append(it.tokens_per_s / before)
    return {segment: sorted(runs) for segment, runs in found.items()}


def ranked(comparison: Comparison) -> list[Trace]:
    """The lanes beside the baseline, the fastest first; those that have no speed-up come last, as they ran. After them
    come lanes whose target is another one, by its adapter, and those with drawn verdicts."""

    def place(trace: Trace) -> tuple[bool, float]:
        return bool(trace.lane.adapter or trace.lane.drawn), -(headline(comparison, trace) or 0.0)

    return sorted(comparison.others, key=place)


def noise(comparison: Comparison) -> float | None:
    """The largest ratio between the tokens per second of two runs of one lane; None if no lane ran twice."""
    runs: dict[str, list[float]] = {}
    for trace in (trace for traces in (comparison.lanes, *comparison.repeats) for trace in traces):
        if speed := measure(trace).tokens_per_s:
            runs.setdefault(trace.lane.name, []).append(speed)
    pairs = (pair for speeds in runs.values() for pair in combinations(speeds, 2))
    return max((max(pair) / min(pair) for pair in pairs), default=None)


def tied(comparison: Comparison, other: Trace) -> bool:
    """Whether a lane is neither clearly faster nor clearly slower than the baseline: the range of its speed-ups
    includes 1. Few runs tell little of the noise, so their range is taken wider, by the noise that was seen and by
    `FLOOR` at least. An output that its first pass ended was the same work in both."""
    if len(comparison.standard.rounds) == len(other.rounds) == 1:
        return True
    repeats, once = repeated(comparison, other), headline(comparison, other) or 1.0
    low, high = (repeats.low, repeats.high) if repeats else (once, once)
    wider = 1.0 if repeats and repeats.runs >= MANY else max(noise(comparison) or 1.0, FLOOR)
    return low / wider <= 1 <= high * wider


def leader(comparison: Comparison) -> Trace | None:
    """The lane that is clearly the fastest, the baseline included: it leads every other lane by more than two runs of
    one lane differed, and by `FLOOR` at least. None where none does, or where nothing ran again."""
    real = [trace for trace in ranked(comparison) if not (trace.lane.drawn or trace.lane.adapter)]
    if not real:
        return None
    measured, (first, *rest) = noise(comparison), real
    fastest, *others = (headline(comparison, trace) or 0.0 for trace in (first, *rest[:1]))
    ahead = fastest / max([1.0, *others])
    return first if measured and first.finish != "stopped" and ahead > max(measured, FLOOR) else None
