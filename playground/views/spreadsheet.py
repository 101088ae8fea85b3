"""Results as CSV: a line for each prompt or request and lane, or for each lane."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from playground import metrics
from playground.errors import PlaygroundError
from playground.metrics.load import Answered
from playground.results import LoadResult, LosslessResult, Recommendation, Result, Row, SuiteResult, SweepResult
from playground.trace import Comparison, Trace
from playground.views import lossless

LEFT_OUT = ("runs_s", "runs_tokens", "positions", "interval")


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
        case LoadResult():
            return _csv(map(_request, result.rows))
    raise PlaygroundError("A benchmark has no lines for a spreadsheet.")


def _lane(trace: Trace) -> dict[str, Any]:
    return {"lane": trace.lane.name, "drafter": trace.lane.drafter, **asdict(metrics.measure(trace))}


def _line(row: Row) -> dict[str, Any]:
    low, high = row.interval or (None, None)
    values = {field.name: getattr(row, field.name) for field in fields(Row) if field.name not in LEFT_OUT}
    return values | {"low": low, "high": high}


def _request(row: Answered) -> dict[str, Any]:
    times = {"ttft_s": row.ttft_s, "latency_s": row.latency_s, "tpot_s": row.tpot_s} if row.arrivals else {}
    return {
        "level": str(row.level), "lane": row.lane, "number": row.number, "question": row.question, "sent_s": row.sent_s,
        "tokens": row.tokens, **dict.fromkeys(("ttft_s", "latency_s", "tpot_s")), **times, "drafted": row.drafted,
        "accepted": row.accepted, "error": row.error,
    }  # fmt: skip


def _csv(lines: Iterable[dict[str, Any]]) -> str:
    rows = list(lines)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
