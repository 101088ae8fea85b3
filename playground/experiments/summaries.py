"""The rows and summaries of a suite, computed from its traces through `metrics`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from playground import metrics
from playground.errors import PlaygroundError
from playground.metrics import Timed
from playground.ranked import ratio
from playground.results import ALL, STANDARD, Row, Summary
from playground.trace import Trace

COUNTS = ("passes", "accepted", "drafted")


def row(
    question: int,
    turn: int,
    category: str,
    lane: str,
    runs: Sequence[Trace],
    baselines: Sequence[Trace],
    conversation: int | None = None,
) -> Row:
    """One prompt through one lane. `runs[j]` and `baselines[j]` belong together."""
    median, runs_s = _median_run(runs), tuple(map(_seconds, runs))
    m, gaps = metrics.measure(median), metrics.gaps(median.rounds)
    ratio = metrics.pooled([_timed(baselines)], [_timed(runs)])
    return Row(
        question=question,
        category=category,
        lane=lane,
        tokens=_tokens(median),
        passes=m.verify_passes,
        seconds=statistics.median(runs_s),
        drafting_s=m.draft_s,
        accepted=m.accepted,
        drafted=m.drafted,
        speedup=ratio.speedup,
        identical=all(metrics.first_difference(baselines[0], trace) is None for trace in [*runs, *baselines]),
        turn=turn,
        ttft_s=m.ttft_s,
        p50_s=gaps.p50_s if gaps else None,
        p95_s=gaps.p95_s if gaps else None,
        runs_s=runs_s,
        runs_tokens=tuple(map(_tokens, runs)),
        interval=None if lane == STANDARD else ratio.interval,
        positions=tuple(metrics.acceptance_by_position(median.rounds)),
        segments=tuple(metrics.by_segment(median)),
        reused=median.reused.tokens if median.reused else None,
        otherwise=metrics.otherwise(median.rounds),
        past_context=next((it.past_context for it in median.rounds if it.past_context is not None), None),
        conversation=conversation,
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Every lane over each category and over all prompts, in the order in which they came, the standard lane first.
    The intervals of a category hold for all its lanes together, as those of `ranked.rank` do."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(f"{ALL} (category)" if row.category == ALL else row.category, []).append(row)
    lanes = list(dict.fromkeys(row.lane for row in rows))
    return [
        _summary(lane, category, [row for row in here if row.lane == lane], here)
        for lane in lanes
        for category, here in [*of.items(), (ALL, rows)]
    ]


def _summary(lane: str, category: str, here: Sequence[Row], rows: Sequence[Row]) -> Summary:
    """`here`: the lane's among the rows of the category."""
    spread = metrics.spread([row.speedup for row in here])
    pooled = ratio(rows, lane, comparisons=max(1, len({row.lane for row in rows} - {STANDARD})))
    passes, accepted, drafted = (_total(getattr(row, name) for row in here) for name in COUNTS)
    return Summary(
        lane=lane,
        category=category,
        prompts=len(here),
        mean_accepted_length=metrics.mean_accepted_length(sum(row.tokens for row in here), passes),
        acceptance_rate=metrics.acceptance_rate(accepted, drafted),
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


def _timed(runs: Sequence[Trace]) -> Timed:
    return Timed(tuple(map(_tokens, runs)), tuple(map(_seconds, runs)))


def _median_run(runs: Sequence[Trace]) -> Trace:
    return sorted(runs, key=_seconds)[(len(runs) - 1) // 2]


def _tokens(trace: Trace) -> int:
    """Raises:
    PlaygroundError: the server does not say.
    """
    tokens = metrics.measure(trace).tokens
    if tokens is None:
        raise PlaygroundError(
            f"{trace.lane.backend} does not say how many tokens its answer has, so there is no time per token to "
            "compare. It has to send `usage` with a streamed answer (`stream_options.include_usage`)."
        )
    return tokens


def _total(counts: Iterable[int | None]) -> int | None:
    """None if one is unknown."""
    found = list(counts)
    return None if None in found else sum(filter(None, found))


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
