"""What a running experiment reports to whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from playground.errors import Stopped
from playground.lane import Lane
from playground.metrics.load import Point, Window
from playground.progress import Progress
from playground.results import QuestionResult, Result
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
class LaneSkipped:
    """A lane that cannot run was left out; `reason` is a sentence. The next lane takes its index."""

    lane: Lane
    reason: str


@dataclass(frozen=True)
class Finished:
    comparison: Comparison


@dataclass(frozen=True)
class PromptDone:
    """A question of a suite has gone through all lanes, or failed. `number` of `total` are done; `speedups`: by what
    people read of the lane; `left_s`: an estimate of the seconds that the rest of the experiment will take; `fraction`:
    what of it is done; `stage`: its name, in an experiment of several suites."""

    number: int
    total: int
    category: str
    speedups: dict[str, float]
    result: QuestionResult
    left_s: float
    fraction: float
    stage: str = ""


@dataclass(frozen=True)
class LevelDone:
    """A level of a load test has gone through a lane. `number` of `total` are done, and gave `points`, the newest last;
    `left_s`: as in `PromptDone`."""

    number: int
    total: int
    points: tuple[Point, ...]
    left_s: float


@dataclass(frozen=True)
class ResultReady:
    """An experiment has ended; of one that was stopped, what was finished."""

    result: Result


PartDone = PromptDone | LevelDone
Event = Progress | LaneStarted | RoundDone | LaneFinished | LaneSkipped | Finished | PartDone | ResultReady | Window


# What work is given by whoever waits for it: where its events go, and whether it is to stop.


@dataclass(frozen=True)
class Watch:
    """`emit` is given each event as it happens. One that `replace` makes with another `emit` stops with this one."""

    emit: Callable[[Event], object] = lambda event: None
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Asks the work to end; returns at once."""
        self._stop.set()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Until it is stopped, this long at most; whether it is."""
        return self._stop.wait(seconds)

    def check(self) -> None:
        """Raises:
        Stopped: it is.
        """
        if self.stopped():
            raise Stopped

    def progress(self, step: Progress) -> None:
        """Emits it.

        Raises:
            Stopped: instead, if it is.
        """
        self.check()
        self.emit(step)
