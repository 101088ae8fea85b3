"""The file that a comparison is saved to: JSON out and in.

A lane's figures are written beside its rounds for other programs to read; here they are computed again from the rounds.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from typing import Any, get_args, get_type_hints

from playground import metrics
from playground.errors import PlaygroundError, check
from playground.lane import Lane, Request
from playground.trace import Comparison, Environment, Finish, Memory, Round, Trace

SCHEMA_VERSION = 1
# Fields that the first files of this version lack; they have defaults.
LATER = ("nodes", "parent", "rank", "keep_free_gb", "capped", "pass_times", "passes", "commit_s", "annotate_s")


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Each lane with its settings, environment, rounds and metrics, then how the second compares with the first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "lanes": [_lane(trace) for trace in comparison.lanes],
        "comparison": dataclasses.asdict(metrics.compare(*comparison.lanes[:2])),
    }


def load(text: str | bytes) -> Comparison:
    """Reads an exported file.

    Raises:
        PlaygroundError: not JSON, not a trace, or one of another schema version.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise PlaygroundError("This file is not JSON. Choose a file that Save trace wrote.") from None
    return from_json(data)


def from_json(data: Any) -> Comparison:
    """Reads what `to_json` made.

    Raises:
        PlaygroundError: the data is not a trace, or one of another schema version.
    """
    check(
        isinstance(data, dict) and "schema_version" in data and isinstance(data.get("lanes"), list),
        "This file is not a trace of the playground: it has no schema_version and no lanes. "
        "Choose a file that the button Save trace or `compare --json` wrote.",
    )
    version = data["schema_version"]
    check(
        version == SCHEMA_VERSION,
        f"This trace has schema version {reprlib.repr(version)}; this playground reads version {SCHEMA_VERSION}. "
        "Open it with the release that wrote it.",
    )
    return Comparison(tuple(_read_lane(lane, f"lanes[{i}]") for i, lane in enumerate(data["lanes"])))


def _lane(trace: Trace) -> dict[str, Any]:
    return {
        "settings": {**dataclasses.asdict(trace.lane), **dataclasses.asdict(trace.request)},
        "environment": dataclasses.asdict(trace.environment),
        "prompt_ids": list(trace.prompt_ids),
        "token_ids": list(trace.token_ids),
        "text": trace.text,
        "finish": trace.finish,
        "rounds": [dataclasses.asdict(round_) for round_ in trace.rounds],
        "memory": trace.memory and dataclasses.asdict(trace.memory),
        "metrics": dataclasses.asdict(metrics.measure(trace)),
    }


def _read_lane(data: Any, where: str) -> Trace:
    check(isinstance(data, dict), f"The trace is damaged: {where} should be an object.")
    settings = data.get("settings")
    rounds = _read_value(tuple[Round, ...], data.get("rounds"), f"{where}.rounds")
    check(len(rounds) > 0 or data.get("finish") == "stopped", f"The trace is damaged: {where} has no rounds.")
    times = [0.0] + [time for round_ in rounds for time in (round_.start_s, round_.end_s)]
    check(
        times == sorted(times) and all(min(r.draft_s, r.verify_s) >= 0 for r in rounds),
        f"The trace is damaged: the times in {where}.rounds run backwards.",
    )
    parents = [(i, token.parent) for round_ in rounds for i, token in enumerate(round_.drafted)]
    check(
        all(parent is None or -1 <= parent < i for i, parent in parents),
        f"The trace is damaged: a drafted token in {where}.rounds stands behind one that does not come before it.",
    )
    environment = _read(Environment, data.get("environment"), f"{where}.environment")
    check(
        all(time.seconds > 0 for time in environment.pass_times),
        f"The trace is damaged: {where}.environment.pass_times has a pass that took no time.",
    )
    return Trace(
        lane=_read(Lane, settings, f"{where}.settings"),
        request=_read(Request, settings, f"{where}.settings"),
        environment=environment,
        prompt_ids=_read_value(tuple[int, ...], data.get("prompt_ids"), f"{where}.prompt_ids"),
        rounds=rounds,
        finish=_read_value(Finish, data.get("finish"), f"{where}.finish"),
        memory=_read_value(Memory | None, data.get("memory"), f"{where}.memory"),
    )


def _read(kind: type, data: Any, where: str) -> Any:
    """Builds the dataclass `kind` from a JSON object; keys that `kind` does not have are left alone."""
    check(isinstance(data, dict), f"The trace is damaged: {where} should be an object.")
    hints = get_type_hints(kind)
    missing = [name for name in hints if name not in data and name not in LATER]
    check(not missing, f"The trace is damaged: {where} has no {', '.join(missing)}.")
    given = {name: hint for name, hint in hints.items() if name in data}
    return kind(**{name: _read_value(hint, data[name], f"{where}.{name}") for name, hint in given.items()})


def _read_value(hint: Any, value: Any, where: str) -> Any:
    """Checks `value` against a type hint of this module's dataclasses and converts lists to tuples, objects to them."""
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, where)
    options = get_args(hint)
    if len(options) == 2 and options[1] is Ellipsis:
        check(isinstance(value, list), f"The trace is damaged: {where} should be a list.")
        return tuple(_read_value(options[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if type(None) in options:
        return None if value is None else _read_value(options[0], value, where)
    if options:
        check(value in options, f"The trace is damaged: {where} should be one of {', '.join(options)}.")
        return value
    if hint is float:
        good = type(value) in (int, float) and abs(value) < 1e15  # neither NaN nor endless
    elif hint is str:
        good = type(value) is str and not any("\ud800" <= char <= "\udfff" for char in value)
    else:
        good = type(value) is hint and (hint is not int or abs(value) < 2**63)  # which torch's seeds are under
    check(good, f"The trace is damaged: {where} should be a value of type {hint.__name__}.")
    return value
