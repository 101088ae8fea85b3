"""The figures of the segments of outputs, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from playground import metrics
from playground.format import count, number, percent, ratio
from playground.metrics import Segment, SegmentFigures, Timed
from playground.results import ALL, STANDARD, Row, SuiteResult, names_of
from playground.trace import Comparison
from playground.views.table import Table

Speedups = Mapping[tuple[str, Segment], str]  # as shown, by lane and segment


def of_comparison(comparison: Comparison) -> Table | None:
    """A row for each lane and segment; None where the outputs are answers alone. A speed-up has the range of its
    runs."""
    speedups: dict[tuple[str, Segment], str] = {}
    for other in comparison.others:
        for segment, runs in metrics.segment_speedups(comparison, other).items():
            median, ends = runs[(len(runs) - 1) // 2], (runs[0], runs[-1])
            shown = ratio(median, ends) if len(runs) > 1 else f"{ratio(median)}, n = 1"
            speedups[other.lane.name, segment] = shown
    return _table({it.lane.name: metrics.by_segment(it) for it in comparison.lanes}, comparison.baseline, speedups)


def of_suite(result: SuiteResult) -> Table | None:
    """The same over all prompts. A speed-up is pooled over the prompts that have the segment in both lanes; where these
    are too few for an interval, it has their number."""
    names = names_of(result.lanes)
    rows: dict[str, dict[tuple[int, int], Row]] = {}
    for row in result.rows:
        rows.setdefault(row.lane, {})[row.question, row.turn] = row
    speedups: dict[tuple[str, Segment], str] = {}
    for lane in rows.keys() - {STANDARD}:
        for segment in metrics.SEGMENTS:
            both = [(_timed(rows[STANDARD].get(at), segment), _timed(row, segment)) for at, row in rows[lane].items()]
            pairs = [(base, ours) for base, ours in both if base and ours]
            if pairs:
                pooled = metrics.pooled([base for base, _ in pairs], [ours for _, ours in pairs])
                prompts = "" if pooled.interval else f", {count(len(pairs), 'prompt')}"
                speedups[names[lane], segment] = ratio(pooled.speedup, pooled.interval) + prompts
    overall = {names.get(it.lane, it.lane): it.segments for it in result.summaries if it.category == ALL}
    return _table(overall, names[STANDARD], speedups)


def _timed(row: Row | None, segment: Segment) -> Timed | None:
    """What a prompt's segment took, without the prefill."""
    figures = next((it for it in row.segments if it.segment == segment), None) if row else None
    return Timed((figures.timed,), (figures.seconds,)) if figures and figures.timed and figures.seconds else None


def _table(lanes: Mapping[str, Sequence[SegmentFigures]], baseline: str, speedups: Speedups) -> Table | None:
    """Speeds leave the prefill out; a speed-up is over the lane `baseline` in the same segment."""
    if len({figures.segment for of_lane in lanes.values() for figures in of_lane}) < 2:
        return None
    rows = tuple(
        (lane, it.segment, f"{it.tokens:,}", percent(it.acceptance_rate), number(it.mean_accepted_length, 2),
         number(it.tokens_per_s, 1), "" if lane == baseline else speedups.get((lane, it.segment), ratio(None)))
        for lane, of_lane in lanes.items()
        for it in of_lane
    )  # fmt: skip
    columns = ("lane", "segment", "tokens", "accepted", "tokens per pass", "tokens/s", "speed-up")
    return Table("By segment", columns, rows, numbers=5)
