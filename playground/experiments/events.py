"""What a running comparison tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from playground.lane import Lane
from playground.progress import Progress
from playground.trace import Comparison, Round, Trace


@dataclass(frozen=True)
class LaneStarted:
    index: int
    lane: Lane


@dataclass(frozen=True)
class RoundDone:
    index: int
    round: Round


@dataclass(frozen=True)
class LaneFinished:
    index: int
    trace: Trace


@dataclass(frozen=True)
class Finished:
    comparison: Comparison


Event = Progress | LaneStarted | RoundDone | LaneFinished | Finished
