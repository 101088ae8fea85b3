"""Two experiments side by side: what was asked differently, and which figures differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from playground import metrics
from playground.errors import PlaygroundError
from playground.format import UNKNOWN, ratio
from playground.lane import Request
from playground.metrics.load import Gain
from playground.results import (
    STANDARD,
    Interval,
    LoadResult,
    LosslessResult,
    Recommendation,
    Result,
    SuiteResult,
    Summary,
    SweepResult,
)
from playground.settings import ANSWER
from playground.trace import Comparison, Environment, Trace
from playground.views import lossless
from playground.views.suite import NO_DIFFERENCE
from playground.views.table import Table

ASKED = tuple(name for name in ANSWER if name != "system")
WHERE = ("device", "device_name", "dtype", "threads")
NAMES = ("first", "second")


def side_by_side(a: Result | Comparison, b: Result | Comparison) -> tuple[list[str], Table]:
    """What was asked differently, in sentences, and the figures of both.

    Raises:
        PlaygroundError: they are of different kinds.
    """
    if isinstance(a, Comparison) and isinstance(b, Comparison):
        return comparison_settings(a, b), comparisons(a, b)
    if isinstance(a, LosslessResult) and isinstance(b, LosslessResult):
        return settings(a, b), verdicts(a, b)
    if isinstance(a, LoadResult) and isinstance(b, LoadResult):
        return load_settings(a, b), loads(a, b)
    first, second = _suite(a), _suite(b)
    if first is None or second is None:
        raise PlaygroundError(
            "These two cannot be compared. Choose two comparisons, two lossless checks, two load tests, or two suites, "
            "sweeps or recommendations."
        )
    return settings(first, second), table(first, second)


def settings(a: SuiteResult | LosslessResult, b: SuiteResult | LosslessResult) -> list[str]:
    """A sentence for each setting in which they differ."""
    pairs: list[tuple[str, Any, Any]] = [("prompts", len(a.prompts), len(b.prompts))]
    if isinstance(a, SuiteResult) and isinstance(b, SuiteResult):
        pairs.append(("runs", a.runs, b.runs))
    pairs += [*_asked(a.request, b.request), *_where(a.environment, b.environment)]
    return _told(pairs, prompts_differ=a.prompts != b.prompts and len(a.prompts) == len(b.prompts))


def comparison_settings(a: Comparison, b: Comparison) -> list[str]:
    """As `settings`."""
    x, y = a.standard, b.standard
    pairs = [("target", x.lane.target, y.lane.target)]
    pairs += [*_asked(x.request, y.request), *_where(x.environment, y.environment)]
    return _told(pairs, prompts_differ=x.request.prompt != y.request.prompt)


def load_settings(a: LoadResult, b: LoadResult) -> list[str]:
    """As `settings`."""
    pairs: list[tuple[str, Any, Any]] = [("requests", a.requests, b.requests), *_asked(a.request, b.request)]
    for x, y in zip(a.environments, b.environments, strict=False):
        pairs += _where(x, y)
    return _told(pairs, prompts_differ=a.request.prompt != b.request.prompt)


def table(a: SuiteResult, b: SuiteResult) -> Table:
    """The pooled speed-up of each lane and category that both have. Intervals that overlap show no difference."""
    of_b = {(summary.lane, summary.category): summary for summary in b.summaries}
    both = [(s, of_b[s.lane, s.category]) for s in a.summaries if (s.lane, s.category) in of_b and s.lane != STANDARD]
    return Table("Speed-up", ("lane", "category", *NAMES, "second ÷ first"), tuple(map(_row, both)), numbers=3)


def comparisons(a: Comparison, b: Comparison) -> Table:
    """The figures of each lane that both have; where each has one lane beside the baseline, of those too."""
    columns = ("figure", *NAMES, "second ÷ first")
    return Table("Figures", columns, tuple(_figures(a, b)), numbers=3)


def loads(a: LoadResult, b: LoadResult) -> Table:
    """The speed-up of each lane at each level that both have. Intervals that overlap show no difference."""
    of_b = {(gain.lane, gain.level): gain for gain in b.gains}
    rows = tuple(_gains(gain, of_b[gain.lane, gain.level]) for gain in a.gains if (gain.lane, gain.level) in of_b)
    return Table("Speed-up", ("lane", "level", *NAMES, "second ÷ first"), rows, numbers=3)


def verdicts(a: LosslessResult, b: LosslessResult) -> Table:
    """The verdicts on the lanes that both have."""
    first, second = ({row[0]: row[1] for row in lossless.table(result).rows} for result in (a, b))
    rows = tuple((lane, first[lane], second[lane]) for lane in first if lane in second)
    return Table("Verdicts", ("lane", *NAMES), rows, numbers=0)


def _suite(result: Result | Comparison) -> SuiteResult | None:
    """Of a recommendation, the runs that confirmed it."""
    match result:
        case SuiteResult():
            return result
        case SweepResult():
            return result.suite
        case Recommendation():
            return result.confirmed
    return None


def _row(pair: tuple[Summary, Summary]) -> tuple[str, ...]:
    a, b = pair
    return (a.lane, a.category, *_speedups(a.overall, a.interval, b.overall, b.interval))


def _gains(a: Gain, b: Gain) -> tuple[str, ...]:
    return (a.lane, str(a.level), *_speedups(a.speedup, a.interval, b.speedup, b.interval))


def _speedups(a: float, of_a: Interval | None, b: float, of_b: Interval | None) -> tuple[str, str, str]:
    change = f"{b / a:.2f}"
    if of_a and of_b and of_a[0] <= of_b[1] and of_b[0] <= of_a[1]:
        change += f", {NO_DIFFERENCE}"
    return ratio(a, of_a), ratio(b, of_b), change


def _figures(a: Comparison, b: Comparison) -> Iterator[tuple[str, ...]]:
    of_b = {trace.lane.name: trace for trace in b.others}
    pairs = [(trace, of_b[trace.lane.name]) for trace in a.others if trace.lane.name in of_b]
    if len(a.others) == len(b.others) == 1:
        pairs = [(a.others[0], b.others[0])]
    for x, y in [(a.standard, b.standard), *pairs]:
        name = x.lane.name if x.lane.name == y.lane.name else f"{x.lane.name}; {y.lane.name}"
        for (figure, first, digits), (_, second, _) in zip(_of(x, a), _of(y, b), strict=True):
            if first is not None or second is not None:
                change = f"{second / first:.2f}" if first and second else UNKNOWN
                yield (
                    f"{name}: {figure}",
                    *(UNKNOWN if v is None else f"{v:.{digits}f}" for v in (first, second)),
                    change,
                )


def _of(trace: Trace, comparison: Comparison) -> list[tuple[str, float | None, int]]:
    """Name, value and digits of each figure."""
    found = metrics.measure(trace)
    plain = trace is comparison.standard
    speedup = metrics.headline(comparison, trace)
    return [
        ("speed-up", None if plain else speedup, 2),
        ("tokens/s", found.tokens_per_s, 1),
        ("TTFT in ms", found.ttft_s and 1000 * found.ttft_s, 0),
        ("mean accepted length", None if plain else found.mean_accepted_length, 2),
    ]


def _asked(a: Request, b: Request) -> list[tuple[str, Any, Any]]:
    return [(name, getattr(a, name), getattr(b, name)) for name in ASKED]


def _where(a: Environment, b: Environment) -> list[tuple[str, Any, Any]]:
    parts = [(name, getattr(a, name), getattr(b, name)) for name in WHERE]
    weights = ("weights", "; ".join(a.weights), "; ".join(b.weights))
    software = dict.fromkeys([*a.versions, *b.versions])
    return [*parts, weights, *((name, a.versions.get(name), b.versions.get(name)) for name in software)]


def _told(pairs: list[tuple[str, Any, Any]], *, prompts_differ: bool) -> list[str]:
    told = [f"{name.replace('_', ' ').capitalize()}: {x} and {y}." for name, x, y in pairs if x != y]
    return told + ["The prompts differ."] * prompts_differ
