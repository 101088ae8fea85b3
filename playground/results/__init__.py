"""Results that are computed from many traces, such as a suite's, as dataclasses; and the JSON files that hold them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from playground import export, validation
from playground.errors import check
from playground.export import SCHEMA_VERSION
from playground.results.experiments import (
    Diagnosis,
    Differing,
    Estimated,
    Finding,
    LaneCheck,
    LaneDepths,
    LoadResult,
    LosslessResult,
    Point,
    Predicted,
    Recommendation,
    Scored,
    SweepResult,
    TrafficResult,
    Trials,
    depths_of,
    rates_of,
)
from playground.results.suite import (
    ALL,
    STANDARD,
    Failure,
    Interval,
    QuestionResult,
    Ranked,
    Row,
    SuiteResult,
    Summary,
    by_unit,
    names_of,
    rank,
    ratio,
    speedups,
)
from playground.trace import Comparison

OfSuites = SuiteResult | SweepResult | Recommendation | TrafficResult
Result = OfSuites | LosslessResult | LoadResult | Diagnosis
CHOOSE = "Choose a file that `--json` of suite, sweep, recommend, lossless, traffic, doctor or load wrote."
KINDS: dict[str, type] = {
    "suite": SuiteResult,
    "sweep": SweepResult,
    "lossless": LosslessResult,
    "recommend": Recommendation,
    "traffic": TrafficResult,
    "load": LoadResult,
    "doctor": Diagnosis,
    "depth": SweepResult,  # the files of earlier releases, in which these were kinds of their own
    "acceptance": SweepResult,
}


def to_json(result: Result | Comparison) -> dict[str, Any]:
    """Return the result as data for JSON; of several prompts without the traces."""
    if isinstance(result, Comparison):
        return export.to_json(result)
    kind = next(name for name, kind in KINDS.items() if isinstance(result, kind))
    return {"schema_version": SCHEMA_VERSION, "kind": kind, **_without_traces(asdict(result))}


def from_json(data: Any) -> Result | Comparison:
    """Read the data that `to_json` made.

    Raises:
        PlaygroundError: the data is no result, or of another schema version.
    """
    if isinstance(data, dict) and "kind" not in data and "baseline" in data:
        return export.from_json(data)
    check(isinstance(data, dict) and data.get("kind") in KINDS, f"This file holds no results. {CHOOSE}")
    kind, version = data["kind"], data.get("schema_version")
    check(
        version == SCHEMA_VERSION,
        f"These results have schema version {version!r}; this playground reads version {SCHEMA_VERSION}. Open them "
        "with the release that wrote them.",
    )
    if kind in ("depth", "acceptance"):
        found = validation.read(SweepResult, {**data, "axis": kind, "points": ()}, extra="ignore")
        return replace(found, points=rates_of(found.suite)) if kind == "acceptance" else found
    return validation.read(KINDS[kind], data, extra="ignore")


def _without_traces(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_traces(value) for key, value in data.items() if key != "traces"}
    return [_without_traces(item) for item in data] if isinstance(data, (list, tuple)) else data
