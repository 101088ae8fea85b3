"""What the page shows of one comparison: events are folded in, the stage's value comes out.

Streamed runs and uploaded traces end in the same picture, because both are drawn from rounds. Knows no Gradio events.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from playground import export, metrics
from playground.experiments.events import Event, Finished, LaneFinished, LaneStarted, RoundDone
from playground.lane import Lane
from playground.progress import Progress
from playground.trace import Comparison, Round, Trace
from playground.ui import panels
from playground.views import charts, report, tokens

NAMES = ("Standard", "Assisted")


@dataclass
class Status:
    """`kind` is "", "busy" (with a bar; its end is unknown if `fraction` is None) or "error"."""

    text: str = ""
    kind: str = ""
    fraction: float | None = None


@dataclass
class LaneView:
    """One lane as shown. `title`: what it is called before it runs. `state`: "", "waiting", "running", "done" or
    "stopped"."""

    title: str
    state: str = ""
    name: str = ""
    drafting: bool = False
    rounds: list[Round] = field(default_factory=list)
    log: str = ""
    timing: dict[str, Any] | None = None  # once the lane has ended
    _measured: metrics.Metrics = field(default_factory=lambda: metrics.measure_rounds(()))
    _measured_rounds: int = 0

    def __post_init__(self) -> None:
        self.name = self.title

    def start(self, lane: Lane) -> None:
        self.name, self.drafting, self.state = lane.name, lane.drafter != "none", "running"

    def finish(self, trace: Trace) -> None:
        self.state = "done" if trace.finish != "stopped" else "stopped" if trace.rounds else ""
        gaps = metrics.gaps(trace.rounds)
        self.timing = {"gaps": asdict(gaps) if gaps else None, "pass_s": metrics.plain_pass_s(trace.rounds)}

    def measure(self) -> metrics.Metrics:
        """Measured again only if rounds came: measuring a long lane at every update would slow the decoding."""
        if len(self.rounds) != self._measured_rounds:
            self._measured = metrics.measure_rounds(self.rounds)
            self._measured_rounds = len(self.rounds)
        return self._measured

    def value(self) -> dict[str, Any]:
        figures = report.figures(self.measure(), drafting=self.drafting) if self.rounds else []
        return {
            "name": self.name,
            "label": f"{self.title}, output",
            "state": self.state,
            "figures": [asdict(f) for f in figures],
            "log": self.log,
            "timing": self.timing,
        }


class Screen:
    """The stage's value while a run streams, and after it. It shows the baseline and the first other lane."""

    def __init__(self, state: str = "", limit: int = 0) -> None:
        """`limit`: the largest number of new tokens of a lane, for its progress bar."""
        self.lanes = [LaneView(name, state) for name in NAMES]
        self.comparison: Comparison | None = None
        self.banner = ""  # where the comparison comes from, if not from a run on this page
        self.replay = False  # whether the page begins to replay by itself
        self._limit = limit
        self._status = Status()

    def value(self) -> dict[str, Any]:
        """JSON for `assets/stage`."""
        return {
            "status": asdict(self._running() or self._status),
            "lanes": [view.value() for view in self.lanes],
            "verdict": _verdict(self.comparison),
            "difference": _difference(self.comparison),
            "banner": self.banner,
            "replay": self.replay,
            "sampled": self.comparison is not None and not self.comparison.standard.request.greedy,
        }

    def take(self, event: Event) -> None:
        match event:
            case Progress():
                self._status = Status(event.label, "busy", event.fraction)
            case LaneStarted():
                self.lanes[event.index].start(event.lane)
            case RoundDone():
                self.lanes[event.index].rounds.append(event.round)
                self.lanes[event.index].log += tokens.line(event.round)
            case LaneFinished():
                self.lanes[event.index].finish(event.trace)
            case Finished():
                self._finish(event.comparison)

    def load(self, comparison: Comparison) -> None:
        """Shows a comparison that was run elsewhere."""
        for view, trace in zip(self.lanes, (comparison.standard, comparison.others[0]), strict=True):
            view.start(trace.lane)
            view.rounds = list(trace.rounds)
            view.log = tokens.log(trace.rounds)
            view.finish(trace)
        self._finish(comparison)

    @classmethod
    def recorded(cls) -> Screen:
        """A run that comes with the page, so that there is something to see before a model is loaded."""
        comparison = export.load((panels.ASSETS / "recorded.json").read_bytes())
        screen = cls()
        screen.load(comparison)
        environment = comparison.others[0].environment
        screen._status = Status()
        screen.banner = (
            f"Recorded on {report.environment_line(environment)}, {environment.created[:10]}. "
            "Press Run to run your own prompt."
        )
        screen.replay = True
        return screen

    def opened(self, comparison: Comparison) -> None:
        """Shows a comparison from a file, and says so."""
        self.load(comparison)
        environment = comparison.others[0].environment
        self.banner = (
            f"Opened from a file: run at {environment.created.replace('T', ' ')[:16]} on "
            f"{report.environment_line(environment)}."
        )

    def end(self, error: str = "") -> None:
        """Nothing more will come: lanes that did not finish were stopped."""
        for view in self.lanes:
            if view.state in ("waiting", "running"):
                view.state = "stopped" if view.rounds else ""
        if error:
            self._status = Status(error, "error")
        elif self.comparison is None:
            self._status = Status("Stopped before a lane had output: nothing to compare or save.")

    def _running(self) -> Status | None:
        for number, view in enumerate(self.lanes, 1):
            if view.state == "running":
                fraction = view.measure().tokens / self._limit if self._limit else None
                return Status(f"Running lane {number} of {len(self.lanes)}: {view.name}", "busy", fraction)
        return None

    def _finish(self, comparison: Comparison) -> None:
        self.comparison = comparison
        hidden = len(comparison.lanes) - len(self.lanes)
        more = f" {hidden} more of its lanes are not shown." if hidden else ""
        self._status = Status(report.done(comparison) + more)


def _verdict(comparison: Comparison | None) -> dict[str, Any]:
    """The headline, its terms, why to doubt it, and what else there is to say of both lanes."""
    if comparison is None:
        meaning = "speed-up: assisted ÷ standard"
        return {"figure": "–", "meaning": meaning, "terms": None, "trust": "", "badges": [], "sentences": []}
    baseline, other = comparison.standard, comparison.others[0]
    equation = metrics.equation(*metrics.compared_rounds(baseline, other))
    doubts = report.doubts(baseline, other)
    return {
        "figure": ("≈ " if doubts else "") + report.speedup(comparison),
        "meaning": report.speedup_meaning(comparison),
        "terms": asdict(equation) if equation else None,
        "trust": "doubtful" if doubts else "holds",
        "badges": doubts,
        "sentences": report.sentences(comparison),
    }


def _difference(comparison: Comparison | None) -> dict[str, Any] | None:
    """Where the outputs of the two lanes differ: the index of the first token, counted over output tokens from 0."""
    if comparison is None:
        return None
    baseline, other = comparison.standard, comparison.others[0]
    found = metrics.first_difference(baseline, other)
    if found is None or found.index >= min(len(baseline.tokens), len(other.tokens)):
        return None
    texts = [lane.tokens[found.index].text for lane in (baseline, other)]
    return {"index": found.index, "margin": found.margin, "texts": texts, "total": len(baseline.tokens)}


def results(comparison: Comparison | None) -> tuple[Any, ...]:
    """Details, memory and the two charts (race, acceptance) of a comparison, or of none."""
    if comparison is None:
        return "", "", None, None
    assisted = comparison.others[0]
    return (
        panels.details(report.details(comparison)),
        panels.memory(report.memory_rows(comparison)),
        panels.plot(charts.race(comparison), "race"),
        panels.plot(charts.acceptance(assisted), "acceptance-by-position"),
    )
