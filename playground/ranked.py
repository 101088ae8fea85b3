"""Which lanes of a suite are the fastest, and which cannot be told from them: computed from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from playground import metrics
from playground.metrics import Timed
from playground.results import STANDARD, Row

N = TypeVar("N", int, float)


def ratio(rows: Iterable[Row], lane: str, over: str = STANDARD, comparisons: int = 1) -> metrics.Pooled:
    """How much faster one lane is than another on the same prompts, with the interval of that ratio. `comparisons`: as
    `metrics.pooled`."""
    by_lane = {name: [row for row in rows if row.lane == name] for name in (over, lane)}
    return metrics.pooled(_questions(by_lane[over]), _questions(by_lane[lane]), comparisons)


def ties(rows: Sequence[Row], lanes: Sequence[str]) -> list[str]:
    """The fastest of these lanes, and those over which it has no gain that was seen, the fastest first. The fastest is
    compared with each of the others on the same prompts and runs, and the intervals of these comparisons hold together;
    without intervals nothing ties."""
    over = {name: ratio(rows, name).speedup for name in lanes}
    best, *others = sorted(lanes, key=lambda name: -over[name])
    found = {name: ratio(rows, best, over=name, comparisons=len(others)) for name in others}
    return [best] + [
        name for name, it in found.items() if (not metrics.differs(it.interval) if it.interval else it.speedup <= 1)
    ]


def _questions(rows: Iterable[Row]) -> list[Timed]:
    """The turns of a question or of a logged conversation taken together: they depend on each other, so that an
    interval draws them together."""
    by_question: dict[tuple[str, int], list[Timed]] = {}
    for row in rows:
        key = ("question", row.question) if row.conversation is None else ("conversation", row.conversation)
        by_question.setdefault(key, []).append(row.timed)
    return [
        Timed(_by_run(turn.tokens for turn in turns), _by_run(turn.seconds for turn in turns))
        for turns in by_question.values()
    ]


def _by_run(turns: Iterable[tuple[N, ...]]) -> tuple[N, ...]:
    """Each run's sum over the turns."""
    return tuple(map(sum, zip(*turns, strict=True)))
