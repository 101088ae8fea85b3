"""The events that a running experiment emits, and the Watch that receives them and can stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
    """A lane that cannot run was left out; `reason` is a sentence. The lanes after its `index` move up by one."""

    lane: Lane
    reason: str
    index: int


@dataclass(frozen=True)
class Finished:
    comparison: Comparison


@dataclass(frozen=True)
class PromptDone:
    """A question of a suite has gone through all lanes, or failed. `number` of `total` are done. `speedups`: by the
    lane's display name. `left_s`: an estimate of the seconds that remain of the experiment. `fraction`: how much of it
    is done. `stage`: the stage's name, in an experiment of several suites."""

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
    """A level of a load test has gone through a lane. `number` of `total` are done, and gave `points`, the newest last.
    `left_s`: see `PromptDone`."""

    number: int
    total: int
    points: tuple[Point, ...]
    left_s: float


@dataclass(frozen=True)
class ResultReady:
    """An experiment has ended with this result; a stopped one with what was finished."""

    result: Result


PartDone = PromptDone | LevelDone
Event = Progress | LaneStarted | RoundDone | LaneFinished | LaneSkipped | Finished | PartDone | ResultReady | Window


@dataclass(frozen=True)
class Watch:
    """Receives the events of a piece of work, and can stop it. `emit` is called with each event as it happens. A copy
    that `replace` makes with another `emit` is stopped together with the original."""

    emit: Callable[[Event], object] = lambda event: None
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Asks the work to end, and returns at once."""
        self._stop.set()

    def stopped(self) -> bool:
        """Returns whether the work was asked to end."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits until the work is stopped, at most this many seconds. Returns whether it is stopped."""
        return self._stop.wait(seconds)

    def check(self) -> None:
        """Ends the work if it is stopped.

        Raises:
            Stopped: it is stopped.
        """
        if self.stopped():
            raise Stopped

    def progress(self, step: Progress) -> None:
        """Emits a progress report.

        Raises:
            Stopped: instead, if the work is stopped.
        """
        self.check()
        self.emit(step)

    def parts(self, costs: Sequence[float], names: Sequence[str] = ()) -> list[Watch]:
        """Returns a watch for each part of the work, done in this order: the fractions and the seconds left in its
        events become those of the whole.

        Args:
            costs: how long each part takes, relative to the others.
            names: of the parts, for labels and for `PromptDone.stage`.
        """
        began: tuple[float, float] | None = None  # a moment, and the fraction that was done by then

        def part(number: int) -> Watch:
            name = names[number] if names else ""

            def emit(event: Event) -> None:
                nonlocal began
                if isinstance(event, Progress | PromptDone) and event.fraction is not None:
                    done = (sum(costs[:number]) + event.fraction * costs[number]) / sum(costs)
                    if began is None or done <= began[1]:  # begins again after the progress of a download
                        began = time.monotonic(), done if isinstance(event, Progress) else 0.0
                    if isinstance(event, Progress):
                        event = Progress(f"{name}: {event.label}" if name else event.label, done)
                    else:
                        left_s = (time.monotonic() - began[0]) / (done - began[1]) * (1 - done)
                        event = replace(event, stage=name, fraction=done, left_s=left_s)
                self.emit(event)

            return replace(self, emit=emit)

        return [part(number) for number in range(len(costs))]
