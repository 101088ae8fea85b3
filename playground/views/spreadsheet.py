"""Results as CSV: a line for each prompt and lane, or for each lane."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from playground import metrics
from playground.errors import PlaygroundError
from playground.results import LosslessResult, Recommendation, Result, Row, SuiteResult, SweepResult
from playground.trace import Comparison, Trace
from playground.views import lossless

LEFT_OUT = ("runs_s", "positions", "interval")


def build(result: Result | Comparison) -> str:
    """Raises:
    PlaygroundError: it has no such lines.
    """
    match result:
        case Comparison():
            return _csv(map(_lane, result.lanes))
        case SuiteResult():
            return _csv(map(_line, result.rows))
        case SweepResult():
            return build(result.suite)
        case LosslessResult():
            table = lossless.table(result)
            return _csv(dict(zip(table.columns, row, strict=True)) for row in table.rows)
        case Recommendation():
            stages = {"screened": result.screened, "refined": result.refined, "confirmed": result.confirmed}
            return _csv({"stage": name} | _line(row) for name, suite in stages.items() for row in suite.rows)
    raise PlaygroundError("A benchmark has no lines for a spreadsheet.")


def _lane(trace: Trace) -> dict[str, Any]:
    return {"lane": trace.lane.name, "drafter": trace.lane.drafter, **asdict(metrics.measure(trace))}


def _line(row: Row) -> dict[str, Any]:
    low, high = row.interval or (None, None)
    values = {field.name: getattr(row, field.name) for field in fields(Row) if field.name not in LEFT_OUT}
    return values | {"low": low, "high": high}


def _csv(lines: Iterable[dict[str, Any]]) -> str:
    rows = list(lines)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
