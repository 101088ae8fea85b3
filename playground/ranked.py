"""The ranking of a suite's lanes: which are faster than standard decoding, and which are the fastest.

It is computed here, from the rows, for verdict, sentence, colour and command alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from playground import metrics
from playground.metrics import Over, Timed
from playground.results import STANDARD, Row

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Ranked:
    """A lane over all prompts of a suite. `speedup`: over the standard lane, with the interval that decides and what it
    is over; None where there are too few prompts and runs, and for the standard lane. `ties`: it is the fastest, or
    cannot be distinguished from it."""

    lane: str
    speedup: float
    interval: tuple[float, float] | None
    over: Over | None
    ties: bool

    @property
    def gains(self) -> bool:
        """True where the lane was seen to be faster than standard decoding."""
        return self.interval is not None and self.interval[0] > 1

    @property
    def loses(self) -> bool:
        """True where the lane was seen to be slower."""
        return self.interval is not None and self.interval[1] < 1


def rank(rows: Sequence[Row], lanes: Iterable[str] = ()) -> list[Ranked]:
    """Return the lanes, the fastest first.

    The intervals over the standard lane hold for all drafting lanes of the suite together (Bonferroni). Which lanes tie
    is decided by the ratio of the fastest to each of the others on the same prompts and runs; any of them might have
    been the fastest, so these intervals hold for all pairs of lanes together.

    Args:
        lanes: those among which the fastest is sought; empty for all.
    """
    drafting = list(dict.fromkeys(row.lane for row in rows if row.lane != STANDARD))
    ratios = {name: ratio(rows, name, comparisons=len(drafting)) for name in drafting}
    ratios[STANDARD] = metrics.Pooled(1.0)
    best, *others = sorted(lanes or ratios, key=lambda name: -ratios[name].speedup)
    pairs = math.comb(len(drafting), 2)

    def ties(name: str) -> bool:
        if STANDARD in (best, name):
            it = ratios[name if best == STANDARD else best]
        else:
            it = ratio(rows, best, over=name, comparisons=pairs)
        return not metrics.differs(it.interval) if it.interval else it.speedup == 1

    return [
        Ranked(name, ratios[name].speedup, ratios[name].interval, ratios[name].over, name == best or ties(name))
        for name in (best, *others)
    ]


def ratio(rows: Iterable[Row], lane: str, over: str = STANDARD, comparisons: int = 1) -> metrics.Pooled:
    """Return the speed-up of one lane over another on the same prompts, with its interval. `comparisons`: see
    `metrics.pooled`."""
    by_lane = {name: [row for row in rows if row.lane == name] for name in (over, lane)}
    return metrics.pooled(_questions(by_lane[over]), _questions(by_lane[lane]), comparisons)


def _questions(rows: Iterable[Row]) -> list[Timed]:
    """Return times of whole questions or logged conversations: their turns depend on each other, so that an interval
    draws them together."""
    by_question: dict[tuple[str, int], list[Timed]] = {}
    for row in rows:
        key = ("question", row.question) if row.conversation is None else ("conversation", row.conversation)
        by_question.setdefault(key, []).append(row.timed)
    return [
        Timed(_by_run(turn.tokens for turn in turns), _by_run(turn.seconds for turn in turns))
        for turns in by_question.values()
    ]


def _by_run(turns: Iterable[tuple[N, ...]]) -> tuple[N, ...]:
    """Return each run's sum over the turns."""
    return tuple(map(sum, zip(*turns, strict=True)))
