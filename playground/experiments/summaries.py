"""The rows and summaries of a suite, computed from its traces through `metrics`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from playground import metrics
from playground.metrics import Timed
from playground.results import ALL, STANDARD, Row, Summary
from playground.trace import Trace

N = TypeVar("N", int, float)


def row(question: int, turn: int, category: str, lane: str, runs: Sequence[Trace], baselines: Sequence[Trace]) -> Row:
    """One prompt through one lane. `runs[j]` and `baselines[j]` belong together."""
    median, runs_s = _median_run(runs), tuple(map(_seconds, runs))
    m, gaps = metrics.measure(median), metrics.gaps(median.rounds)
    ratio = metrics.pooled([_timed(baselines)], [_timed(runs)])
    return Row(
        question=question,
        category=category,
        lane=lane,
        tokens=m.tokens,
        passes=m.verify_passes,
        seconds=statistics.median(runs_s),
        drafting_s=m.draft_s,
        accepted=m.accepted,
        drafted=m.drafted,
        speedup=ratio.speedup,
        identical=all(trace.token_ids == baselines[0].token_ids for trace in [*runs, *baselines]),
        turn=turn,
        ttft_s=m.ttft_s,
        p50_s=gaps.p50_s if gaps else None,
        p95_s=gaps.p95_s if gaps else None,
        runs_s=runs_s,
        runs_tokens=tuple(len(trace.tokens) for trace in runs),
        interval=None if lane == STANDARD else ratio.interval,
        positions=tuple(metrics.acceptance_by_position(median.rounds)),
        segments=tuple(metrics.by_segment(median)),
        reused=median.reused.tokens if median.reused else None,
        otherwise=metrics.otherwise(median.rounds),
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Every lane over each category and over all prompts, in the order in which they came, the standard lane first."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(f"{ALL} (category)" if row.category == ALL else row.category, []).append(row)
    lanes = list(dict.fromkeys(row.lane for row in rows))
    return [
        _summary(lane, category, [row for row in here if row.lane == lane], here)
        for lane in lanes
        for category, here in [*of.items(), (ALL, rows)]
    ]


def ratio(rows: Iterable[Row], lane: str, over: str = STANDARD, comparisons: int = 1) -> metrics.Pooled:
    """How much faster one lane is than another on the same prompts, with the interval of that ratio. `comparisons`: as
    `metrics.pooled`."""
    by_lane = {name: [row for row in rows if row.lane == name] for name in (over, lane)}
    return metrics.pooled(_questions(by_lane[over]), _questions(by_lane[lane]), comparisons)


def ties(rows: Sequence[Row], lanes: Sequence[str]) -> list[str]:
    """The fastest of these lanes, and those over which it has no gain that was seen, the fastest first. The fastest is
    compared with each of the others on the same prompts and runs, and the intervals of these comparisons hold together;
    without intervals nothing ties."""
    over = {name: ratio(rows, name).speedup for name in lanes}
    best, *others = sorted(lanes, key=lambda name: -over[name])
    found = {name: ratio(rows, best, over=name, comparisons=len(others)) for name in others}
    return [best] + [
        name for name, it in found.items() if (not metrics.differs(it.interval) if it.interval else it.speedup <= 1)
    ]


def _summary(lane: str, category: str, here: Sequence[Row], rows: Sequence[Row]) -> Summary:
    """`here`: the lane's among the rows of the category."""
    spread = metrics.spread([row.speedup for row in here])
    pooled = ratio(rows, lane)
    tokens, passes = sum(row.tokens for row in here), sum(row.passes for row in here)
    return Summary(
        lane=lane,
        category=category,
        prompts=len(here),
        mean_accepted_length=metrics.mean_accepted_length(tokens, passes) or 0.0,
        acceptance_rate=metrics.acceptance_rate(sum(row.accepted for row in here), sum(row.drafted for row in here)),
        speedup=spread.median,
        low=spread.low,
        high=spread.high,
        overall=pooled.speedup,
        interval=None if lane == STANDARD else pooled.interval,
        identical=sum(row.identical for row in here),
        macro=metrics.macro([row.speedup for row in here]),
        over=None if lane == STANDARD else pooled.over,
        tokens_per_s=sum(sum(row.timed.tokens) for row in here) / sum(sum(row.timed.seconds) for row in here),
        total_s=statistics.median(row.seconds for row in here),
        ttft_s=_median(row.ttft_s for row in here),
        p50_s=_median(row.p50_s for row in here),
        p95_s=_median(row.p95_s for row in here),
        positions=tuple(metrics.add_positions(row.positions for row in here)),
        segments=tuple(metrics.add_segments(row.segments for row in here)),
        otherwise=metrics.add_otherwise(row.otherwise for row in here),
    )


def _questions(rows: Iterable[Row]) -> list[Timed]:
    """The turns of a question taken together: they depend on each other, so that an interval draws them together."""
    by_question: dict[int, list[Timed]] = {}
    for row in rows:
        by_question.setdefault(row.question, []).append(row.timed)
    return [
        Timed(_by_run(turn.tokens for turn in turns), _by_run(turn.seconds for turn in turns))
        for turns in by_question.values()
    ]


def _by_run(turns: Iterable[tuple[N, ...]]) -> tuple[N, ...]:
    """Each run's sum over the turns."""
    return tuple(map(sum, zip(*turns, strict=True)))


def _timed(runs: Sequence[Trace]) -> Timed:
    return Timed(tuple(len(trace.tokens) for trace in runs), tuple(map(_seconds, runs)))


def _median_run(runs: Sequence[Trace]) -> Trace:
    return sorted(runs, key=_seconds)[(len(runs) - 1) // 2]


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
