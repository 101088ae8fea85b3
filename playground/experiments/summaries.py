"""The rows and summaries of a suite, computed from its traces through `metrics`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from playground import metrics
from playground.metrics import Timed
from playground.results import ALL, STANDARD, Row, Summary
from playground.trace import Trace


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
        interval=None if lane == STANDARD else ratio.interval,
        positions=tuple(metrics.acceptance_by_position(median.rounds)),
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Every lane over each category and over all prompts, in the order in which they came, the standard lane first."""
    categories = list(dict.fromkeys(row.category for row in rows))
    lanes = list(dict.fromkeys(row.lane for row in rows))
    return [
        _summary(lane, category, [row for row in rows if category in (row.category, ALL)])
        for lane, category in itertools.product(lanes, [*categories, ALL])
    ]


def ratio(rows: Iterable[Row], lane: str, over: str = STANDARD) -> metrics.Pooled:
    """How much faster one lane is than another on the same prompts, with the interval of that ratio."""
    by_lane = {name: [row for row in rows if row.lane == name] for name in (over, lane)}
    return metrics.pooled(_questions(by_lane[over]), _questions(by_lane[lane]))


def _summary(lane: str, category: str, rows: Sequence[Row]) -> Summary:
    here = [row for row in rows if row.lane == lane]
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
        tokens_per_s=tokens / sum(row.seconds for row in here),
        total_s=statistics.median(row.seconds for row in here),
        ttft_s=_median(row.ttft_s for row in here),
        p50_s=_median(row.p50_s for row in here),
        p95_s=_median(row.p95_s for row in here),
        positions=tuple(metrics.add_positions(row.positions for row in here)),
    )


def _questions(rows: Iterable[Row]) -> list[Timed]:
    """The turns of a question taken together: they depend on each other, so that an interval draws them together."""
    by_question: dict[int, list[Timed]] = {}
    for row in rows:
        by_question.setdefault(row.question, []).append(row.timed)
    return [
        Timed(sum(turn.tokens for turn in turns), tuple(map(sum, zip(*(turn.seconds for turn in turns), strict=True))))
        for turns in by_question.values()
    ]


def _timed(runs: Sequence[Trace]) -> Timed:
    return Timed(len(_median_run(runs).tokens), tuple(map(_seconds, runs)))


def _median_run(runs: Sequence[Trace]) -> Trace:
    return sorted(runs, key=_seconds)[(len(runs) - 1) // 2]


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
