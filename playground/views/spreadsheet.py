"""Results as CSV: a line for each prompt and lane."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, fields

from playground import metrics
from playground.results import Row, SuiteResult
from playground.trace import Comparison

LEFT_OUT = ("runs_s", "positions", "interval")


def suite(result: SuiteResult) -> str:
    names = [field.name for field in fields(Row) if field.name not in LEFT_OUT]
    lines = [{name: getattr(row, name) for name in names} | _ends(row) for row in result.rows]
    return _csv([*names, "low", "high"], lines)


def comparison(result: Comparison) -> str:
    lanes = [
        {"lane": trace.lane.name, "drafter": trace.lane.drafter, **asdict(metrics.measure(trace))}
        for trace in result.lanes
    ]
    return _csv(list(lanes[0]), lanes)


def _ends(row: Row) -> dict[str, float | None]:
    low, high = row.interval or (None, None)
    return {"low": low, "high": high}


def _csv(names: list[str], lines: list[dict]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
