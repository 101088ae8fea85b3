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


def of_comparison(comparison: Comparison, names: Sequence[str] = ()) -> Table | None:
    """A row for each lane and segment; None where the outputs are answers alone.

    Args:
        names: of the lanes that are shown beside the baseline; none is all.
    """
    names = names or [trace.lane.name for trace in comparison.others]
    speedups: dict[tuple[str, Segment], str] = {}
    for name in names:
        for segment, (over, interval) in metrics.segment_speedups(comparison, name).items():
            speedups[name, segment] = ratio(over, interval) if interval else f"{ratio(over)}, n = 1"
    lanes = [it for it in metrics.shown(comparison).lanes if it.lane.name in (comparison.baseline, *names)]
    return _table({it.lane.name: metrics.by_segment(it) for it in lanes}, comparison.baseline, speedups)


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
    return Table("By segment, prefill left out", columns, rows, numbers=5)
