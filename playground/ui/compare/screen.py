"""What the page shows of one comparison: events are folded in, the stage's value comes out.

Streamed runs and uploaded traces end in the same picture, because both are drawn from rounds. Knows no Gradio events.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from playground import export, metrics
from playground.experiments.events import Event, Finished, LaneFinished, LaneSkipped, LaneStarted, RoundDone
from playground.format import gigabytes
from playground.lane import LOCAL, Lane
from playground.progress import Progress
from playground.trace import Comparison, Round, Trace
from playground.ui import panels
from playground.views import charts, drafters, facts, run_details, tokens

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
        if trace.rounds != tuple(self.rounds):  # a server told more at the end
            self.rounds, self.log, self._measured_rounds = list(trace.rounds), tokens.log(trace.rounds), 0
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
        figures = facts.figures(self.measure(), drafting=self.drafting) if self.rounds else []
        return {
            "name": self.name,
            "label": f"{self.title}, output",
            "state": self.state,
            "figures": [asdict(f) for f in figures],
            "log": self.log,
            "timing": self.timing,
        }


class Screen:
    """The stage's value while a run streams, and after it.

    It shows the baseline and one other lane: the one that runs, after the run the fastest, or the one that was chosen.
    """

    def __init__(self, state: str = "", limit: int = 0, lanes: int = 2) -> None:
        """`limit`: the largest number of new tokens of a lane, for its progress bar. `lanes`: how many will run."""
        self.lanes = [LaneView(NAMES[min(i, 1)], state) for i in range(lanes)]
        self.comparison: Comparison | None = None
        self.chosen = ""  # the name of the lane beside the baseline
        self.download = 0.0  # bytes of a download to agree to
        self.repeatable = False  # whether the comparison can be run again from this page
        self._traces: list[Trace] = []  # of the lanes that finished, the baseline first
        self._rows: list[dict[str, Any]] = []  # of the table of drafters; made once a lane, not at every update
        self._skipped: list[LaneSkipped] = []
        self.banner = ""  # where the comparison comes from, if not from a run on this page
        self.replay = False  # whether the page begins to replay by itself
        self._limit = limit
        self._status = Status()

    def value(self) -> dict[str, Any]:
        """JSON that `assets/stage` draws."""
        shown = self.comparison.beside(self.chosen) if self.comparison else None
        return {
            "status": asdict(self._running() or self._status),
            "lanes": [self.lanes[0].value(), self._beside().value()],
            "verdict": _verdict(shown, repeatable=self.repeatable),
            "difference": _difference(shown),
            "drafters": self._drafters(),
            "offer": f"Download {gigabytes(self.download)} and run" if self.download else "",
            "banner": self.banner,
            "replay": self.replay,
            "sampled": self.comparison is not None and not self.comparison.standard.request.greedy,
            "ran": _ran(shown),
        }

    def packed(self) -> dict[str, Any]:
        """The value as the page takes it."""
        return panels.packed(self.value())

    def take(self, event: Event) -> None:
        match event:
            case Progress():
                self._status = Status(event.label, "busy", event.fraction)
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
                self._rows = [asdict(row) for row in drafters.rows(self._traces[0], self._traces[1:])]
            case LaneSkipped():
                self.lanes.pop()
                self._skipped.append(event)
            case Finished():
                self._finish(event.comparison)

    def load(self, comparison: Comparison) -> None:
        """Shows a comparison that was run elsewhere."""
        self.lanes = [LaneView(NAMES[min(i, 1)]) for i in range(len(comparison.lanes))]
        for view, trace in zip(self.lanes, (comparison.standard, *comparison.others), strict=True):
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
            f"Recorded run: “{comparison.standard.request.prompt}” on {facts.environment_line(environment)}, "
            f"{environment.created[:10]}. Press Run for your own."
        )
        screen.replay = True
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
            self._status = Status(error, "error")
        elif self.comparison is None:
            self._status = Status("Stopped before a lane had output: nothing to compare or save.")

    def _running(self) -> Status | None:
        for number, view in enumerate(self.lanes, 1):
            if view.state == "running":
                fraction = view.measure().tokens / self._limit if self._limit else None
                return Status(f"Running lane {number} of {len(self.lanes)}: {view.name}", "busy", fraction)
        return None

    def choose(self, name: str) -> None:
        """Shows this lane beside the baseline."""
        self.chosen = name

    def _finish(self, comparison: Comparison) -> None:
        for view, trace in zip(self.lanes, (comparison.standard, *comparison.others), strict=True):
            view.name = trace.lane.name  # also of a lane that was never reached
        self._rows = [asdict(row) for row in drafters.of(comparison)]
        if self.comparison is None:
            asked_for = [it.lane.name for it in comparison.others if it.lane.backend != LOCAL and it.rounds]
            self.chosen = asked_for[-1] if asked_for else self._rows[0]["lane"]
        self.comparison = comparison
        self._status = Status(facts.done(comparison))

    def _beside(self) -> LaneView:
        return next((view for view in self.lanes[1:] if view.name == self.chosen), self.lanes[1])

    def _drafters(self) -> dict[str, Any] | None:
        """The table of all drafters so far; None for a comparison of two lanes, or one that never began."""
        if len(self.lanes) + len(self._skipped) <= 2 or (self._status.kind == "error" and not self._rows):
            return None
        return {
            "caption": drafters.CAPTION,
            "head": list(drafters.HEAD),
            "rows": self._rows,
            "chosen": self.chosen,
            "ready": self.comparison is not None,
            "skipped": [f"{skipped.lane.name}: {skipped.reason}" for skipped in self._skipped],
        }


def _verdict(comparison: Comparison | None, *, repeatable: bool) -> dict[str, Any]:
    """The headline, its terms, why to doubt it, and what else there is to say of both lanes."""
    if comparison is None:
        return {
            "figure": "–",
            "meaning": "speed-up: assisted ÷ standard",
            "terms": None,
            "repeats": None,
            "repeatable": False,
            "trust": "",
            "badges": [],
            "sentences": [],
        }
    baseline, other = comparison.standard, comparison.others[0]
    equation = metrics.equation(*metrics.compared_rounds(baseline, other))
    repeats = metrics.repeated(comparison, other)
    doubts = facts.doubts(baseline, other, repeats)
    return {
        "figure": ("≈ " if doubts else "") + facts.speedup(comparison),
        "meaning": facts.speedup_meaning(comparison),
        "terms": asdict(equation) if equation else None,
        "repeats": asdict(repeats) if repeats else None,
        "repeatable": repeatable,
        "trust": "doubtful" if doubts else "holds",
        "badges": doubts,
        "sentences": facts.sentences(comparison),
    }


def _ran(comparison: Comparison | None) -> str:
    """Model, device and date, for the picture."""
    if comparison is None:
        return ""
    lane, environment = comparison.others[0].lane, comparison.others[0].environment
    return f"{lane.target} · {facts.environment_line(environment)} · {environment.created[:10]}"


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


def results(comparison: Comparison | None, chosen: str = "") -> tuple[Any, ...]:
    """Details, memory and the two charts (race, acceptance) of a comparison, or of none. Memory and race
    show all lanes, the rest the baseline and the chosen lane."""
    if comparison is None:
        return "", "", None, None
    shown = comparison.beside(chosen or comparison.others[0].lane.name)
    assisted = shown.others[0]
    return (
        panels.details(run_details.details(shown)),
        panels.memory(facts.memory(comparison)),
        panels.plot(charts.race(comparison), "race"),
        panels.plot(charts.acceptance(assisted), "acceptance-by-position"),
    )
