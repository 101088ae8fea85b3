"""What the page shows of one comparison: folds events in, and tells what has changed since it was last asked.

Streamed runs and uploaded traces end in the same state, because both are drawn from rounds. Knows no Gradio events.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from playground import metrics
from playground.experiments.events import Event, Finished, LaneFinished, LaneStarted, Progress, RoundDone
from playground.trace import Comparison, Lane, Round
from playground.ui import panels
from playground.views import charts, report, tokens

HEAD_PERIOD_S = 0.2  # figures that change faster cannot be read
NAMES = ("Standard", "Assisted")


@dataclass
class LaneView:
    """One lane as shown. `state` is "", "waiting", "running", "done" or "stopped"."""

    name: str
    drafting: bool = False
    state: str = ""
    rounds: list[Round] = field(default_factory=list)
    log: str = ""

    def head(self) -> str:
        measured = metrics.measure_rounds(self.rounds)
        figures = report.figures(measured, drafting=self.drafting) if self.rounds else []
        return panels.head(self.name, self.state, figures)


class Screen:
    """The names in what `changes` returns are those of the page's components (see `events.Outputs`)."""

    def __init__(self, state: str = "", limit: int = 0) -> None:
        """`limit`: the new tokens that a lane may have at most, for its progress bar."""
        self._limit = limit
        self.lanes = [LaneView(name, state=state) for name in NAMES]
        self.comparison: Comparison | None = None
        self._changed: dict[str, Any] = {}
        self._heads_due: dict[int, float] = {}
        self._show(status="", verdict=panels.verdict(), details="", race=None, rounds=None, gaps=None, acceptance=None)
        for index in range(len(self.lanes)):
            self._show_head(index)
            self._show_log(index)

    def take(self, event: Event) -> None:
        match event:
            case Progress():
                self._show(status=panels.status(event.label, "busy", event.fraction))
            case LaneStarted():
                self._start(event.index, event.lane)
            case RoundDone():
                view = self.lanes[event.index]
                view.rounds.append(event.round)
                view.log += tokens.line(event.round)
                self._show_log(event.index)
                if time.monotonic() >= self._heads_due.get(event.index, 0.0):
                    self._show_head(event.index)
                    self._show_running(event.index)
            case LaneFinished():
                self._end(event.index, "stopped" if event.trace.finish == "stopped" else "done")
            case Finished():
                self._finish(event.comparison)

    def load(self, comparison: Comparison) -> None:
        """Shows a comparison that was run elsewhere."""
        for index, trace in enumerate(comparison.lanes[:2]):
            self._start(index, trace.lane)
            self.lanes[index].rounds = list(trace.rounds)
            self.lanes[index].log = tokens.log(trace.rounds)
            self._show_log(index)
            self._end(index, "stopped" if trace.finish == "stopped" else "done")
        self._finish(comparison)

    def end(self, error: str = "") -> None:
        """Nothing more will come: lanes that did not finish were stopped."""
        for index, view in enumerate(self.lanes):
            if view.state in ("waiting", "running"):
                self._end(index, "stopped" if view.rounds else "")
        if error:
            self._show(status=panels.status(error, "error"))
        elif self.comparison is None:
            self._show(status=panels.status("Stopped before both lanes had a round."))

    def changes(self) -> dict[str, Any]:
        """The new values since the last call, by component name."""
        changed, self._changed = self._changed, {}
        return changed

    def _start(self, index: int, lane: Lane) -> None:
        view = self.lanes[index]
        view.name, view.drafting, view.state = lane.name, lane.drafter != "none", "running"
        self._show_head(index)
        self._show_running(index)

    def _end(self, index: int, state: str) -> None:
        self.lanes[index].state = state
        self._show_head(index)

    def _finish(self, comparison: Comparison) -> None:
        self.comparison = comparison
        stopped = any(trace.finish == "stopped" for trace in comparison.lanes[:2])
        more = f" The first two of its {len(comparison.lanes)} lanes are shown." if len(comparison.lanes) > 2 else ""
        environment = comparison.lanes[1].environment
        self._show(
            status=panels.status(
                f"{'Stopped' if stopped else 'Done'}: {report.environment_line(environment)} · "
                f"{'; '.join(environment.weights)}.{more}"
            ),
            verdict=panels.verdict(
                report.speedup(comparison),
                report.speedup_meaning(comparison),
                (report.sameness(comparison), report.passes(comparison)),
            ),
            details=panels.details(report.details(comparison)),
            race=panels.plot(charts.race(comparison), "race"),
            rounds=panels.plot(charts.rounds(comparison.lanes[1]), "time-per-round"),
            gaps=panels.plot(charts.gaps(comparison), "time-between-tokens"),
            acceptance=panels.plot(charts.acceptance(comparison.lanes[1]), "acceptance-by-place"),
        )

    def _show_running(self, index: int) -> None:
        view = self.lanes[index]
        tokens_done = sum(len(round_.tokens) for round_ in view.rounds)
        sentence = f"Lane {index + 1} of {len(self.lanes)} is running: {view.name}"
        self._show(status=panels.status(sentence, "busy", tokens_done / self._limit if self._limit else None))

    def _show_head(self, index: int) -> None:
        self._heads_due[index] = time.monotonic() + HEAD_PERIOD_S
        self._show(**{f"head_{index}": self.lanes[index].head()})

    def _show_log(self, index: int) -> None:
        self._show(**{f"log_{index}": self.lanes[index].log})

    def _show(self, **values: Any) -> None:
        self._changed.update(values)
