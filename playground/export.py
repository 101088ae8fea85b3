"""The file that a comparison is saved to: JSON written and read, older schemas included.

A lane's figures are written with its rounds for other programs; here they are computed again from the rounds.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from dataclasses import asdict
from itertools import chain
from math import isclose
from typing import Any

from playground import metrics, validation
from playground.errors import PlaygroundError, check
from playground.trace import Comparison, Trace

SCHEMA_VERSION = 3
MOST_LANES, MOST_TOKENS = 100, 1_000_000  # including drafted tokens
MOST_SECONDS = 1e15


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return each lane with its request, environment, rounds and metrics, then how the others differ from the
    baseline."""
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": comparison.baseline,
        "lanes": [trace_to_json(trace) for trace in comparison.lanes],
        "repeats": [[trace_to_json(trace) for trace in traces] for traces in comparison.repeats],
        "differences": [validation.plain(difference) for difference in metrics.differences(comparison)],
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
        PlaygroundError: it is not JSON, not a trace, or of a newer schema version.
    """
    try:
        text = text.removeprefix("\ufeff") if isinstance(text, str) else text  # the byte order mark of some editors
        data = json.loads(text, parse_constant=str)  # NaN becomes text, so that the error names its field
    except (ValueError, RecursionError):
        raise PlaygroundError("This file is not JSON. Choose a file that Save trace wrote.") from None
    return from_json(data, most)


def from_json(data: Any, most: int = MOST_TOKENS) -> Comparison:
    """Read the data that `to_json` made, in this or an earlier release.

    Raises:
        PlaygroundError: the data is not a trace, or of a newer schema version.
    """
    check(
        isinstance(data, dict) and "schema_version" in data and isinstance(data.get("lanes"), list),
        "This file is not a trace of the playground: it has no schema_version and no lanes. "
        "Choose a file that the button Save trace or `compare --json` wrote.",
    )
    check(len(data["lanes"]) <= MOST_LANES, f"This trace has {len(data['lanes']):,} lanes; {MOST_LANES} can be shown.")
    version = data["schema_version"]
    check(
        version in range(1, SCHEMA_VERSION + 1) and version is not True,
        f"This trace has schema version {reprlib.repr(version)}; this playground reads versions 1 to {SCHEMA_VERSION}. "
        "Open it with the release that wrote it.",
    )
    try:
        data = _from_version_1(data) if version == 1 else data
        data = _from_version_2(data) if version < SCHEMA_VERSION else data
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
    check(len(trace.rounds) > 0 or trace.finish == "stopped", f"{where} has no rounds.")
    times = [0.0] + [time for round_ in trace.rounds for time in (round_.start_s, round_.end_s)]
    durations = [s for r in trace.rounds for s in (r.draft_s, r.verify_s, r.commit_s, r.annotate_s) if s is not None]
    check(
        times == sorted(times) and min(durations, default=0.0) >= 0,
        f"the times in {where}.rounds run backwards.",
    )
    check(not trace.rounds or bool(trace.tokens), f"the rounds in {where}.rounds have no tokens.")
    no_time = len(trace.rounds) > 1 and trace.rounds[-1].end_s == trace.rounds[0].end_s
    check(
        not no_time and all(round_.verify_s != 0 for round_ in trace.rounds),
        f"{where}.rounds has a target pass, or a lane, that took no time.",
    )
    check(all(round_.passes >= 1 for round_ in trace.rounds), f"a round in {where}.rounds has no target pass.")
    parents = [(i, token.parent) for round_ in trace.rounds for i, token in enumerate(round_.drafted)]
    check(
        all(parent is None or -1 <= parent < i for i, parent in parents),
        f"a drafted token in {where}.rounds has a parent that does not come before it.",
    )
    check(
        all(time.seconds > 0 for time in trace.environment.pass_times),
        f"{where}.environment.pass_times has a pass that took no time.",
    )
    counted = [count for count in asdict(trace.totals).values() if count is not None] if trace.totals else []
    check(min(counted, default=0) >= 0, f"{where}.totals has a negative count.")
    held = trace.memory
    sizes = [held.target_weights, held.target_cache, held.drafter_weights, held.drafter_cache] if held else [0]
    check(min(sizes) >= 0, f"{where}.memory has a negative size.")
    if held and held.experts:
        check(
            1 <= held.experts.per_token <= held.experts.count and 0 <= held.experts.weights < held.target_weights,
            f"{where}.memory.experts are not experts of the target.",
        )
    numbers = [*times, *durations, *(time.seconds for time in trace.environment.pass_times)]
    check(max(numbers) < MOST_SECONDS, f"{where} has a time of over 1e15 seconds.")
    ids = [*(trace.prompt_ids or ()), *(t.id or 0 for r in trace.rounds for t in (*r.drafted, *r.tokens))]
    ids += [round_.past_context or 0 for round_ in trace.rounds]
    check(all(abs(id_) < 2**63 for id_ in ids), f"{where} has a token id or a context of over 63 bits.")
    return trace


# --- schema 1: lane and request were one object, "settings"; versions were fields of the environment ---

LANE = (
    "name",
    "target",
    "drafter",
    "assistant",
    "lookahead",
    "policy",
    "confidence_threshold",
    "nodes",
    "keep_free_gb",
)
SOFTWARE = ("playground", "python", "torch", "transformers")


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a comparison of schema 1 to schema 2. The first lane is the baseline. Commit and annotation were not
    timed."""
    lanes = [_lane_from_1(lane, f"lanes[{i}]") for i, lane in enumerate(data["lanes"])]
    seen: Counter[str] = Counter()
    for lane in lanes:  # names were arbitrary; now they identify lanes
        name = str(lane["lane"].get("name"))
        seen[name] += 1
        if seen[name] > 1:
            lane["lane"]["name"] = f"{name} ({seen[name]})"
    return {"baseline": lanes[0]["lane"].get("name") if lanes else "", "lanes": lanes}


def _lane_from_1(lane: Any, where: str) -> dict[str, Any]:
    check(isinstance(lane, dict), f"{where} should be keys with values.")
    settings, environment = lane.get("settings"), lane.get("environment")
    for name, part in (("settings", settings), ("environment", environment)):
        check(isinstance(part, dict), f"{where}.{name} should be keys with values.")
    # Schema 1 always wrote every setting of the request; a default must not replace a missing one.
    for key in ("max_new_tokens", "temperature", "top_p", "top_k", "seed"):
        check(key in settings, f"{where}.settings.{key} should be there, and is missing.")
    rounds = lane.get("rounds")
    return {
        **lane,
        "lane": {key: settings[key] for key in LANE if key in settings},
        "request": {key: value for key, value in settings.items() if key not in LANE},
        "environment": environment_from_1(environment),
        "rounds": [_round_from_1(round_) for round_ in rounds] if isinstance(rounds, list) else rounds,
    }


def environment_from_1(environment: dict[str, Any]) -> dict[str, Any]:
    """Convert an environment of schema 1, which has its versions as fields."""
    return {**environment, "versions": {key: environment[key] for key in SOFTWARE if key in environment}}


def _round_from_1(round_: Any) -> Any:
    if not isinstance(round_, dict) or not isinstance(round_.get("drafted"), list):
        return round_
    drafted = [
        token | {"decision": "unverified"} if isinstance(token, dict) and token.get("decision") == "unused" else token
        for token in round_["drafted"]
    ]
    return {**round_, "drafted": drafted}


# --- schema 2: start_s and end_s were wall-clock times, annotation included ---


def _from_version_2(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a comparison of schema 2 to schema 3. Invalid data is left for `validation` to report."""
    repeats = data.get("repeats", [])
    return {
        **data,
        "lanes": [_decoding_times(lane) for lane in data["lanes"]],
        "repeats": [list(map(_decoding_times, traces)) if isinstance(traces, list) else traces for traces in repeats]
        if isinstance(repeats, list)
        else repeats,
    }


def _decoding_times(lane: Any) -> Any:
    """Convert a lane's times to those of a clock that stops while a round is annotated."""
    if not isinstance(lane, dict) or not isinstance(lane.get("rounds"), list):
        return lane
    rounds, annotated_s, now = [], 0.0, 0.0
    for round_ in lane["rounds"]:
        if not isinstance(round_, dict) or not all(map(_is_time, (round_.get("start_s"), round_.get("end_s")))):
            return lane
        times = {}
        for name in ("start_s", "end_s"):
            moved = round_[name] - annotated_s
            # Where nothing lies between two times, rounding may put the later one before the earlier.
            now = now if isclose(moved, now, rel_tol=0, abs_tol=1e-9) else moved
            times[name] = now
        rounds.append({**round_, **times})
        annotated_s += round_["annotate_s"] if _is_time(round_.get("annotate_s")) else 0.0
    return {**lane, "rounds": rounds}


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < MOST_SECONDS
