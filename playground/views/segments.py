"""The figures of the segments of outputs, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from playground.format import number, percent, ratio
from playground.metrics import SegmentFigures
from playground.views.table import Table


def table(lanes: Mapping[str, Sequence[SegmentFigures]], baseline: str) -> Table | None:
    """A row for each lane and segment; None where there is only one segment. Speeds leave the prefill out; the speed-up
    is over the lane `baseline` in the same segment."""
    if len({figures.segment for of_lane in lanes.values() for figures in of_lane}) < 2:
        return None
    plain = {figures.segment: figures.tokens_per_s for figures in lanes.get(baseline, ())}
    rows = []
    for lane, of_lane in lanes.items():
        for it in of_lane:
            speed, base = it.tokens_per_s, plain.get(it.segment)
            speedup = speed / base if speed and base and lane != baseline else None
            rows.append(
                (lane, it.segment, f"{it.tokens:,}", percent(it.acceptance_rate), number(it.mean_accepted_length, 2),
                 number(speed, 1), "" if lane == baseline else ratio(speedup))
            )  # fmt: skip
    columns = ("lane", "segment", "tokens", "accepted", "tokens per pass", "tokens/s", "speed-up")
    return Table("By segment", columns, tuple(rows), numbers=5)
