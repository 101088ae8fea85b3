"""Two results compared: which settings differ, and which figures.

Each kind of result registers which of its settings and figures are compared.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import singledispatch
from typing import Any

from playground.errors import PlaygroundError
from playground.format import NO_DIFFERENCE, number, ratio
from playground.lane import Request
from playground.results import Interval, Result
from playground.trace import Comparison, Environment
from playground.views import facts
from playground.views.table import Table

Speedups = Mapping[tuple[str, str], tuple[float, Interval | None]]
HEAD = ("first", "second", "second ÷ first")
MEASURED = (
    "created",
    "pass_times",
    "notes",
    "bandwidth",
    "bandwidth_spread",
    "compile_s",
)  # fields that are not settings


def side_by_side(a: Result | Comparison, b: Result | Comparison) -> tuple[list[str], Table]:
    """Return which settings differ, in sentences, and a table with the figures of both.

    Raises:
        PlaygroundError: they are of different kinds.
    """
    a, b = comparable(a), comparable(b)
    if type(a) is not type(b):
        raise _not_comparable()
    return [*_differences(settings(a), settings(b))], figures(a, b)


@singledispatch
def comparable(result: Any) -> Any:
    """Return the part of a result that is compared: all of it, except for kinds that consist of suites."""
    return result


@singledispatch
def settings(result: Any) -> dict[str, Any]:
    """Return the request's settings and the environment, by name. `prompts`: the prompts' texts.

    Raises:
        PlaygroundError: results of this kind cannot be compared.
    """
    raise _not_comparable()


@singledispatch
def figures(a: Any, b: Any) -> Table:
    """Return the figures that two results of a kind both have."""
    raise _not_comparable()


def settings_of(request: Request, environment: Environment | None, **more: Any) -> dict[str, Any]:
    """Return the settings of a request without its prompt, and those of the environment, by name. `more`: further
    ones."""
    asked = (each.name for each in fields(Request) if each.name not in ("prompt", "history"))
    found = {**more, **{name: getattr(request, name) for name in asked}, "earlier messages": request.history_json}
    return found | (settings_of_environment(environment) if environment else {})


def settings_of_environment(environment: Environment, name: str = "") -> dict[str, Any]:
    """Return the fields of an environment that are no measurements, software by its own name. `name`: a prefix for
    each."""
    chosen = {each.name: getattr(environment, each.name) for each in fields(Environment) if each.name not in MEASURED}
    chosen |= {name: facts.rules_line(chosen[name]) for name in ("obeyed", "not_obeyed")}
    return {f"{name}{key}": value for key, value in (chosen | chosen.pop("versions")).items()}


def common(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Iterate over the keys that both have, with both values."""
    return ((key, a[key], b[key]) for key in a if key in b)


def speedup_table(names: tuple[str, ...], a: Speedups, b: Speedups) -> Table:
    """Return a table of the speed-ups that both have. `names`: the names of the parts of a key."""
    rows = tuple((*key, *speedups(*x, *y)) for key, x, y in common(a, b))
    return Table("Speed-up", (*names, *HEAD), rows, numbers=len(HEAD))


def speedups(a: float | None, of_a: Interval | None, b: float | None, of_b: Interval | None) -> tuple[str, str, str]:
    """Return the cells of two speed-ups under `HEAD`. Intervals that overlap show no difference."""
    change = number(b / a if a and b else None)
    if of_a and of_b and of_a[0] <= of_b[1] and of_b[0] <= of_a[1]:
        change += f", {NO_DIFFERENCE}"
    return ratio(a, of_a), ratio(b, of_b), change


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Return a sentence for each setting in which they differ."""
    for name in dict.fromkeys([*a, *b]):
        first: Any = a.get(name)
        second: Any = b.get(name)
        if first == second:
            continue
        if name != "prompts":
            yield f"{name.replace('_', ' ').capitalize()}: {_shown(first)} and {_shown(second)}."
        elif len(first) != len(second):
            yield f"Prompts: {len(first)} and {len(second)}."
        else:
            yield "The prompts differ."


def _shown(value: Any) -> str:
    """Return a setting's value as text, shortened."""
    text = "; ".join(value) if isinstance(value, tuple) else str(value)
    return textwrap.shorten(text, 80, placeholder=" …") or "none"


def _not_comparable() -> PlaygroundError:
    return PlaygroundError(
        "These two cannot be compared. Choose two comparisons, two lossless checks, two load tests, or two suites, "
        "sweeps or recommendations."
    )
