"""The stage of the page: a run's events are folded in, the stage's value comes out. Knows no Gradio events."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from playground import export, metrics
from playground.experiments.events import Event, Finished, LaneFinished, LaneSkipped, LaneStarted, RoundDone
from playground.progress import Progress
from playground.trace import Comparison, Trace
from playground.views import facts, run_details, scripts, stage, tokens
from playground.views.stage import NAMES, LaneView, Stage, Status


class Screen(Stage):
    """The stage while a run streams, and after it."""

    def __init__(self, state: str = "", limit: int = 0, lanes: int = 2) -> None:
        """`limit`: the largest number of new tokens of a lane, for its progress bar. `lanes`: how many will run."""
        super().__init__(state, lanes)
        self._traces: list[Trace] = []  # of the lanes that finished, the baseline first
        self._limit = limit
        self._began = time.monotonic()  # when its reader began to wait

    def value(self) -> dict[str, Any]:
        running = self._running()
        return super().value() | ({"status": asdict(running)} if running else {})

    def packed(self) -> dict[str, Any]:
        """The value as the page takes it."""
        return stage.packed(self.value())

    def take(self, event: Event) -> None:
        match event:
            case Progress():
                self.status = Status(event.label, "busy", event.fraction)
            case LaneStarted():
                self.lanes[event.index] = LaneView(NAMES[min(event.index, 1)])  # a skipped lane may have begun here
                self.lanes[event.index].start(event.lane)
                self.chosen = event.lane.name
            case RoundDone():
                self.lanes[event.index].rounds.append(event.round)
                self.lanes[event.index].log += tokens.line(event.round)
            case LaneFinished():
                self.lanes[event.index].finish(event.trace)
                self._traces.append(event.trace)
                if len(self._traces) > 1:
                    self.rank(Comparison(tuple(self._traces), self._traces[0].lane.name))
            case LaneSkipped():
                self.lanes.pop()
                self.skipped.append(f"{event.lane.name}: {event.reason}")
            case Finished():
                self.finish(event.comparison)
                self.status = Status(facts.done(event.comparison, time.monotonic() - self._began))
                self.replay = "once"

    @classmethod
    def recorded(cls) -> Screen:
        """A run that comes with the page, so that there is something to see before a model is loaded."""
        comparison = export.load((scripts.ASSETS / "recorded.json").read_bytes())
        screen = cls()
        screen.load(comparison)
        environment = comparison.others[0].environment
        screen.status = Status()
        where = facts.environment_line(environment)
        screen.banner = f"Recorded run: {where}, {environment.created[:10]}. Press Run for your own."
        screen.replay = "loop"
        return screen

    def opened(self, comparison: Comparison, source: str) -> None:
        """Shows a comparison that did not run just now, and says where it comes from."""
        self.load(comparison)
        environment = comparison.others[0].environment
        self.banner = (
            f"Opened from {source}: run at {facts.run_at(environment)} on {facts.environment_line(environment)}."
        )

    def end(self, error: str = "") -> None:
        """Nothing more will come: lanes that did not finish were stopped."""
        for view in self.lanes:
            if view.state in ("waiting", "running"):
                view.state = "stopped" if view.rounds else ""
        if error:
            self.status = Status(error, "error")
        elif self.comparison is None:
            self.status = Status("Stopped before a lane had output: nothing to compare or save.")

    def _running(self) -> Status | None:
        for number, view in enumerate(self.lanes, 1):
            if view.state == "running":
                fraction = (view.measure().tokens or 0) / self._limit if self._limit else None
                return Status(f"Running lane {number} of {len(self.lanes)}: {view.name}", "busy", fraction)
        return None


def details(comparison: Comparison | None, chosen: str = "") -> str:
    """Settings, machine and memory of the baseline and the chosen lane, folded, below their segments; "" without a
    comparison."""
    if comparison is None:
        return ""
    name = chosen or comparison.others[0].lane.name
    shown = run_details.details(metrics.beside(comparison, name))
    return run_details.by_segment(comparison, name) + run_details.html(shown)
