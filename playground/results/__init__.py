"""Results that are computed from many traces, such as a suite's, as dataclasses; and the JSON files that hold them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from playground import validation
from playground.errors import check
from playground.export import LANE, SCHEMA_VERSION, environment_from_1
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
    rates_of,
)
from playground.results.suite import (
    ALL,
    STANDARD,
    Failure,
    Interval,
    QuestionResult,
    Row,
    SuiteResult,
    Summary,
    names_of,
)

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


def to_json(result: Result) -> dict[str, Any]:
    """Return the result as data for JSON, without the traces."""
    kind = next(name for name, kind in KINDS.items() if isinstance(result, kind))
    return {"schema_version": SCHEMA_VERSION, "kind": kind, **_without_traces(asdict(result))}


def from_json(data: Any) -> Result:
    """Read the data that `to_json` made, in this or an earlier release.

    Raises:
        PlaygroundError: the data is no result, or of a newer schema version.
    """
    named = isinstance(data, dict) and data.get("kind") in KINDS
    older = isinstance(data, dict) and "kind" not in data and "rows" in data
    check(named or older, f"This file holds no results. {CHOOSE}")
    kind = data.get("kind", "suite")
    if "schema_version" not in data:
        check(isinstance(data.get("environment"), dict), "This file holds no results: it names no machine.")
        data = _from_version_1(data)
    check(
        data["schema_version"] in (2, SCHEMA_VERSION),  # in 2, seconds include the annotation of rounds
        f"These results have schema version {data['schema_version']!r}; this playground reads versions 1 to "
        f"{SCHEMA_VERSION}. Open them with the release that wrote them.",
    )
    if kind in ("depth", "acceptance"):
        found = validation.read(SweepResult, {**data, "axis": kind, "points": ()}, extra="ignore")
        return replace(found, points=rates_of(found.suite)) if kind == "acceptance" else found
    return validation.read(KINDS[kind], data, extra="ignore")


def _without_traces(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_traces(value) for key, value in data.items() if key != "traces"}
    return [_without_traces(item) for item in data] if isinstance(data, (list, tuple)) else data


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """Add `runs`, and settings of the lane that have defaults, which the first files of suites lack."""
    migrated = {"runs": 1, **data, "schema_version": SCHEMA_VERSION}
    migrated["environment"] = environment_from_1(data["environment"])
    if isinstance(data.get("lanes"), list):
        migrated["lanes"] = [
            {key: lane[key] for key in LANE if key in lane} if isinstance(lane, dict) else lane
            for lane in data["lanes"]
        ]
    return migrated
