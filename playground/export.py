"""The file that a comparison is saved to: JSON, written and read.

A lane's figures are written with its rounds for other programs; here they are computed again from the rounds.
"""

from __future__ import annotations

import json
import reprlib
from itertools import chain
from typing import Any

from playground import metrics, validation
from playground.errors import PlaygroundError, check
from playground.trace import Comparison, Trace

SCHEMA_VERSION = 3
MOST_LANES, MOST_TOKENS = 100, 1_000_000  # including drafted tokens


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return each lane with its request, environment, rounds and metrics, then how the others differ from the
    baseline."""
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": comparison.baseline,
        "lanes": [trace_to_json(trace) for trace in comparison.lanes],
        "repeats": [[trace_to_json(trace) for trace in traces] for traces in comparison.repeats],
        "differences": [_difference(metrics.measured(comparison, trace.lane.name)) for trace in comparison.others],
    }


def _difference(found: metrics.Measured) -> dict[str, Any]:
    """Return a lane against the baseline: `speedup`, `interval` and `outcome` as page and terminal show them, and the
    rest of the runs that they show, those of pass number `shown`."""
    return {
        "baseline": found.base.lane.name,
        "lane": found.ours.lane.name,
        "speedup": found.speedup,
        "interval": found.interval,
        "outcome": found.outcome,
        "runs": found.runs,
        "shown": found.shown,
        "whole_run_ratio": found.whole_run_ratio,
        "identical": found.difference is None,
        "first_difference": validation.plain(found.difference) if found.difference else None,
    }


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """Return one lane, with figures that other programs would otherwise have to compute."""
    return {
        **validation.plain(trace),
        "token_ids": list(trace.token_ids),
        "text": trace.text,
        "metrics": validation.plain(metrics.measure(trace)),
        "segments": metrics.segments(trace),
        "by_segment": [validation.plain(it) for it in metrics.by_segment(trace)],
        "calibration": [validation.plain(it) for it in metrics.calibration(trace)],
    }


def load(text: str | bytes, most: int = MOST_TOKENS) -> Comparison:
    """Read an exported file of at most `most` tokens.

    Raises:
        PlaygroundError: it is not JSON, not a trace, or of another schema version.
    """
    try:
        text = text.removeprefix("\ufeff") if isinstance(text, str) else text  # the byte order mark of some editors
        data = json.loads(text, parse_constant=str)  # NaN becomes text, so that the error names its field
    except (ValueError, RecursionError):
        raise PlaygroundError("This file is not JSON. Choose a file that Save trace wrote.") from None
    return from_json(data, most)


def from_json(data: Any, most: int = MOST_TOKENS) -> Comparison:
    """Read the data that `to_json` made.

    Raises:
        PlaygroundError: the data is not a trace, or of another schema version.
    """
    check(
        isinstance(data, dict) and "schema_version" in data and isinstance(data.get("lanes"), list),
        "This file is not a trace of the playground: it has no schema_version and no lanes. "
        "Choose a file that the button Save trace or `compare --json` wrote.",
    )
    check(len(data["lanes"]) <= MOST_LANES, f"This trace has {len(data['lanes']):,} lanes; {MOST_LANES} can be shown.")
    version = data["schema_version"]
    check(
        version == SCHEMA_VERSION,
        f"This trace has schema version {reprlib.repr(version)}; this playground reads version {SCHEMA_VERSION}. "
        "Open it with the release that wrote it.",
    )
    try:
        lanes = tuple(_read_lane(lane, f"lanes[{i}]") for i, lane in enumerate(data["lanes"]))
        repeats = tuple(
            tuple(_read_lane(lane, f"repeats[{i}][{j}]") for j, lane in enumerate(traces))
            for i, traces in enumerate(validation.read(list[list[dict]], data.get("repeats", []), "repeats"))
        )
        tokens = sum(1 + len(round_.drafted) for trace in (*lanes, *chain(*repeats)) for round_ in trace.rounds)
        check(tokens <= most, f"it has {tokens:,} tokens, of which {most:,} can be shown here.")
        return Comparison(lanes, validation.read(str, data.get("baseline"), "baseline"), repeats)
    except PlaygroundError as error:
        raise PlaygroundError(f"The trace is damaged: {error}") from None


def _read_lane(data: Any, where: str) -> Trace:
    trace = validation.read(Trace, data, where, extra="ignore")
    rounds = trace.rounds
    check(len(rounds) > 0 or trace.finish == "stopped", f"{where} has no rounds.")
    times = [0.0, *(time for round_ in rounds for time in (round_.start_s, round_.end_s))]
    check(times == sorted(times), f"the times in {where}.rounds run backwards.")
    check(not rounds or bool(trace.tokens), f"the rounds in {where}.rounds have no tokens.")
    no_time = len(rounds) > 1 and rounds[-1].end_s == rounds[0].end_s
    check(
        not no_time and all(round_.verify_s != 0 for round_ in rounds),
        f"{where}.rounds has a target pass, or a lane, that took no time.",
    )
    parents = [(i, token.parent) for round_ in rounds for i, token in enumerate(round_.drafted)]
    check(
        all(parent is None or parent < i for i, parent in parents),
        f"a drafted token in {where}.rounds has a parent that does not come before it.",
    )
    if trace.memory and (of := trace.memory.experts):
        check(
            1 <= of.per_token <= of.count and 0 <= of.weights < trace.memory.target_weights,
            f"{where}.memory.experts are not experts of the target.",
        )
    return trace
