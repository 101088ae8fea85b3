"""Two experiments side by side: what was asked differently, and which speed-ups differ."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from playground.results import STANDARD, SuiteResult, Summary
from playground.views.suite import NO_DIFFERENCE, Table, ratio

ASKED = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "chat_template")
WHERE = ("device", "device_name", "dtype", "threads", "weights", "versions")


def settings(a: SuiteResult, b: SuiteResult) -> list[str]:
    """A sentence for each setting in which they differ."""
    pairs = [("prompts", len(a.prompts), len(b.prompts)), ("runs", a.runs, b.runs)]
    pairs += _differing(asdict(a.request), asdict(b.request), ASKED)
    pairs += _differing(asdict(a.environment), asdict(b.environment), WHERE)
    told = [f"{name.replace('_', ' ')}: {x} and {y}." for name, x, y in pairs if x != y]
    return told + (["The prompts differ."] if a.prompts != b.prompts and len(a.prompts) == len(b.prompts) else [])


def table(a: SuiteResult, b: SuiteResult, names: tuple[str, str] = ("first", "second")) -> Table:
    """The pooled speed-up of each lane and category that both have. Intervals that overlap show no difference."""
    of_b = {(summary.lane, summary.category): summary for summary in b.summaries}
    both = [(s, of_b[s.lane, s.category]) for s in a.summaries if (s.lane, s.category) in of_b and s.lane != STANDARD]
    return Table("Speed-up", ("lane", "category", *names, "second ÷ first"), tuple(map(_row, both)), numbers=3)


def _row(pair: tuple[Summary, Summary]) -> tuple[str, ...]:
    a, b = pair
    change = f"{b.overall / a.overall:.2f}"
    if a.interval and b.interval and a.interval[0] <= b.interval[1] and b.interval[0] <= a.interval[1]:
        change += f", {NO_DIFFERENCE}"
    return (a.lane, a.category, ratio(a.overall, a.interval), ratio(b.overall, b.interval), change)


def _differing(a: dict[str, Any], b: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, Any, Any]]:
    return [(name, a[name], b[name]) for name in names if a[name] != b[name]]
