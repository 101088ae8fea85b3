"""State of the Compare page: the stage of a run, opened traces, and the last runs of a session.

A run's events are folded into a `Screen`, which returns the stage's value. Traces from files are stored packed and
within bounds, because a small file can hold a long trace. This module handles no Gradio events.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

import gradio as gr

from playground import export, metrics
from playground.errors import check
from playground.experiments.events import Event, Finished, LaneFinished, LaneSkipped, LaneStarted, RoundDone
from playground.experiments.history import new_id
from playground.lane import LOCAL, preset_of
from playground.presets import Pair
from playground.progress import Progress
from playground.trace import Comparison, Trace
from playground.views import facts, headline, scripts, stage
from playground.views.stage import Stage, Status


class Screen(Stage):
    """The stage during a run and after it."""

    def __init__(self, state: str = "", limit: int = 0, lanes: int = 2) -> None:
        """`limit`: the most new tokens of a lane, for its progress bar. `lanes`: how many lanes will run."""
        super().__init__(state, lanes)
        self._traces: dict[str, Trace] = {}  # of the lanes that have finished, by name
        self._limit = limit
        self.began = time.monotonic()  # when the reader's wait began

    def value(self) -> dict[str, Any]:
        running = self._running()
        return super().value() | ({"status": asdict(running)} if running else {})

    def packed(self) -> dict[str, Any]:
        """Returns the value in the form that the page reads."""
        return stage.packed(self.value())

    def take(self, event: Event) -> None:
        """Folds an event into the stage."""
        match event:
            case Progress():
                self.status = Status(event.label, "busy", event.fraction)
            case LaneStarted():
                self.lanes[event.index].start(event.lane)
                self.chosen = event.lane.name
            case RoundDone():
                self.lanes[event.index].rounds.append(event.round)
                self.lanes[event.index].log += stage.line(event.round)
            case LaneFinished():
                self.lanes[event.index].finish(event.trace)
                self._traces[event.trace.lane.name] = event.trace
                done = [self._traces[view.name] for view in self.lanes if view.name in self._traces]
                if len(done) > 1 and done[0].lane.name == self.lanes[0].name:
                    self.rank(Comparison(tuple(done), done[0].lane.name))
            case LaneSkipped():
                self.lanes.pop(event.index)
                self.skipped.append(f"{event.lane.name}: {event.reason}")
            case Finished():
                self.finish(event.comparison)
                found = metrics.measured(event.comparison, self.chosen)
                stopped = "stopped" in (found.base.finish, found.ours.finish)
                took_s = time.monotonic() - self.began
                self.status = Status(facts.stopped(found) if stopped else facts.done(event.comparison, took_s))
                self.replay = "once"

    @classmethod
    def recorded(cls) -> Screen:
        """Returns a recorded run that ships with the page, so that it shows something before a model is loaded."""
        comparison, screen = _recorded(), cls()
        screen.load(comparison)
        environment = comparison.others[0].environment
        screen.status = Status()
        screen.banner = f"Recorded run: {environment.device_name}, {environment.created[:10]}."
        screen.replay, screen.kind = "loop", "recorded"
        return screen

    @classmethod
    def alone(cls, status: Status) -> Screen:
        """Returns a stage with this sentence, on which nothing of what was shown before stays."""
        screen = cls()
        screen.status, screen.kind = status, "alone"
        return screen

    def opened(self, comparison: Comparison, source: str) -> None:
        """Shows a comparison that was not run just now, and says where it comes from."""
        self.load(comparison)
        self.banner = f"Opened from {source}: run at {facts.run_at(comparison.others[0].environment)}."

    def end(self, error: str = "") -> None:
        """Marks the end of the events: lanes that did not finish were stopped."""
        for view in self.lanes:
            if view.state in ("waiting", "running"):
                view.state = "stopped" if view.rounds else ""
        if error:
            self.status = Status(error, "error")
        elif self.comparison is None:
            self.status = Status("Stopped before a lane had output: nothing to compare or save.")

    def _running(self) -> Status | None:
        running = [view.title for view in self.lanes if view.state == "running"]
        if not running:
            return None
        done = [(view.measure().tokens or 0) / self._limit for view in self.lanes if view.rounds and self._limit]
        fraction = sum(done) / len(self.lanes) if self._limit else None
        names = " and ".join(running) if len(running) < 3 else f"{len(running)} lanes"
        return Status(f"Running {names}", "busy", fraction)


@cache
def _recorded() -> Comparison:
    return export.load((scripts.ASSETS / "recorded.json").read_bytes())


GONE = "This trace is no longer kept, since many were opened. Open it again."


class Opened:
    """Opened traces of all sessions, packed.

    Args:
        room: bytes of all traces; the least recently shown ones are dropped first.
        each: how many traces of one visitor may be in work or wait for it.
    """

    def __init__(self, room: float, each: float) -> None:
        self._room, self._each = room, each
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._opening: Counter[str] = Counter()

    @contextmanager
    def opening(self, visitor: str) -> Iterator[None]:
        """Counts a visitor's trace as being opened within the context.

        Raises:
            PlaygroundError: too many of the visitor's traces are being opened.
        """
        check(
            self._opening[visitor] < self._each,
            f"{self._opening[visitor]} of your traces are being opened, the most on this server. Wait for one of them.",
        )
        self._opening[visitor] += 1
        try:
            yield
        finally:
            self._opening[visitor] -= 1
            if not self._opening[visitor]:
                del self._opening[visitor]

    def keep(self, packed: bytes) -> Held:
        """Stores a pickled comparison."""
        held = Held(self, secrets.token_hex(8))
        self._packed[held.key] = packed
        while sum(map(len, self._packed.values())) > self._room:
            self._packed.popitem(last=False)
        return held

    def packed(self, key: str) -> bytes:
        """Returns a pickled comparison.

        Raises:
            gr.Error: it was dropped.
        """
        if key not in self._packed:
            raise gr.Error(GONE, print_exception=False)
        self._packed.move_to_end(key)
        return self._packed[key]


@dataclass(frozen=True)
class Held:
    """A comparison in `Opened`, by its key."""

    of: Opened
    key: str

    @property
    def packed(self) -> bytes:
        return self.of.packed(self.key)

    @property
    def comparison(self) -> Comparison:
        return pickle.loads(self.packed)


@dataclass(frozen=True)
class Shown:
    """A comparison that a page shows. `held`: the comparison, or the place of a trace from a file. `chosen`: the name
    of the lane that is compared with the baseline. `pair`: the pair that ran it on this page, with which it can run
    again; None for a trace from a file. `id`: its id in the history, which a repeat does not change. `link`: the query
    of the shared link that opened it; "" without one."""

    held: Comparison | Held
    chosen: str
    pair: Pair | None = None
    id: str = field(default_factory=new_id)
    link: str = ""

    @property
    def comparison(self) -> Comparison:
        return self.held.comparison if isinstance(self.held, Held) else self.held

    def screen(self) -> Screen:
        """Returns the stage of the comparison as it is shown."""
        screen = Screen()
        screen.load(self.comparison, self.chosen)
        screen.repeatable = screen.goes_on = self.repeatable
        return screen

    @property
    def repeatable(self) -> bool:
        """True where this page can run the comparison again: it ran here, and no lane was stopped."""
        return self.pair is not None and all(trace.finish != "stopped" for trace in self.comparison.lanes)

    @property
    def from_file(self) -> bool:
        return isinstance(self.held, Held)


def goes_on_with(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair]) -> Pair | None:
    """Returns the preset whose models can decode the next turn in both lanes of a run from elsewhere, with the lanes
    unchanged; None if there is none."""
    both = (comparison.standard, next(trace for trace in comparison.others if trace.lane.name == chosen))
    lanes = [trace.lane for trace in both]
    plain = all(it.backend == LOCAL and it.rule == "exact" and not (it.adapter or it.forced_rates) for it in lanes)
    whole = plain and lanes[0].drafter == "none" and all(trace.finish != "stopped" for trace in both)
    return preset_of(lanes[1], pairs.values()) if whole and lanes[0].target == lanes[1].target else None


KEPT = 8
DAY_MINUTES = 24 * 60


def strip() -> gr.Radio:
    """Returns the strip of the session's last runs."""
    return gr.Radio([], label="Last runs", visible=False, elem_id="runs")


def added(runs: Sequence[Shown], shown: Shown | None) -> list[Shown]:
    """Returns the runs with one more, the newest first; the oldest is dropped when there are too many. A run without a
    result is not added, and a repeated run does not move."""
    if shown is None:
        return [*runs]
    if (at := index_of(runs, shown)) is not None:
        return [*runs[:at], shown, *runs[at + 1 :]]
    return [shown, *runs][:KEPT]


def index_of(runs: Sequence[Shown], shown: Shown | None) -> int | None:
    """Returns the index of a run, which its repeats share; None if it is not among them."""
    return next((i for i, run in enumerate(runs) if shown and run.comparison.lanes == shown.comparison.lanes), None)


def choices(runs: Sequence[Shown], chosen: int | None, minutes: Any) -> dict[str, Any]:
    """Returns an update of the strip, with the run at an index chosen. `minutes`: how far the reader's clock is ahead
    of UTC, from the browser; an invalid value means UTC."""
    known = isinstance(minutes, (int, float)) and abs(minutes) < DAY_MINUTES
    zone = timezone(timedelta(minutes=minutes if known else 0))
    named = [(_label(shown, zone), index) for index, shown in enumerate(runs)]
    return gr.update(choices=named, value=chosen, visible=bool(runs))


def _label(shown: Shown, zone: timezone) -> str:
    """Returns a label such as "14:32 · Draft tree · 1.87×"."""
    measured = metrics.measured(shown.comparison, shown.chosen)
    trace = measured.ours
    at = datetime.fromisoformat(trace.environment.created).astimezone(zone)
    return f"{at:%H:%M} · {trace.lane.name} · {headline.speedup(measured)}"
