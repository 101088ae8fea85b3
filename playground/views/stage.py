"""The stage as the JSON that `assets/stage` draws: status line, both lanes, the figure between them, and each lane's
log.

The log has one JSON object a round, a line each. It only grows while a lane runs, so each update sends and draws only
the new rounds. Whatever is unknown, false or at its default is left out, because the browser holds the whole log.

A round is {"drafted": [token, …], "own": token, "tree": true, "otherRule": n, "times": {"start", "draft", "verify",
"end"}}, times in seconds; `otherRule` is how many draft tokens the other exact rule would have accepted. A token is
{"id", "text", "kind", "p", "q", "margin", "special", "position", "parent", "rank", "draw", "bound", "forced"}: `kind`
is its decision or reason, `position` its position in the draft or its depth in the tree, `rank` that of the target's
own choice among the drafter's, also on the rejected token it replaces, `draw` the uniform number that decided, `bound`
what it is compared with, `forced` whether a grammar forced it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

from playground import metrics
from playground.format import beginning, gigabytes
from playground.lane import LOCAL, Lane, Request
from playground.metrics import Measured
from playground.trace import Comparison, DraftToken, Round, TargetToken, Trace
from playground.views import drafters, engines, facts, headline

COMPACT = json.JSONEncoder(separators=(",", ":"))


def line(round_: Round) -> str:
    """Return a round as one line of JSON, in ASCII, ended by a newline."""
    target = round_.target
    drafted = [
        _token(
            token,
            token.decision,
            q=_rounded(token.q),
            position=position,
            parent=token.parent,
            draw=_rounded(token.draw),
            forced=token.forced or None,
            bound=_rounded(token.bound),
        )
        for token, position in zip(round_.drafted, metrics.positions(round_.drafted), strict=True)
    ]
    if target:
        last = max((i for i, token in enumerate(round_.drafted) if token.decision == "accepted"), default=-1)
        for i, token in enumerate(round_.drafted):
            parent = i - 1 if token.parent is None else token.parent
            if token.decision == "rejected" and parent == last and target.rank is not None:
                drafted[i]["rank"] = target.rank
    data = {
        "drafted": drafted,
        **({"own": _token(target, target.reason, rank=target.rank)} if target else {}),
        **({"tree": True} if round_.is_tree else {}),
        **({} if round_.other_rule is None else {"otherRule": round_.other_rule}),
        "times": _times(round_),
    }
    return COMPACT.encode(data) + "\n"


def log(rounds: Iterable[Round]) -> str:
    """Return the whole log of a lane, equal to the lines that streaming its rounds gives."""
    return "".join(line(round_) for round_ in rounds)


def _token(token: DraftToken | TargetToken, kind: str, **more: Any) -> dict[str, Any]:
    known = {"id": token.id, "p": _rounded(token.p), "margin": _rounded(token.margin), **more}
    special = {"special": True} if token.special else {}
    return {"text": token.text, "kind": kind, **special} | {k: v for k, v in known.items() if v is not None}


def _times(round_: Round) -> dict[str, float]:
    """Return the times of a round, rounded to the microsecond."""
    times = {"start": round_.start_s, "draft": round_.draft_s, "verify": round_.verify_s, "end": round_.end_s}
    return {name: round(time, 6) for name, time in times.items() if time is not None}


def _rounded(value: float | None) -> float | None:
    """Round to four digits: one more than the page shows, so that a small probability is not a 0."""
    return None if value is None else float(f"{value:.4g}")


# The stage is drawn from rounds, so a run that streams, one that has ended and an uploaded trace look the same.


NAMES = ("Standard", "Speculative")
SAID = ("Tokens per check", "Passes saved")  # labels of figures that the headline has already
Replay = Literal["", "once", "loop"]  # whether the page starts the replay by itself
Kind = Literal["", "recorded", "alone"]  # the run that ships with the page; what leaves nothing else on the stage


@dataclass
class Status:
    """The status line. `kind` is "", "busy" (with a bar; its end is unknown if `fraction` is None) or "error"."""

    text: str = ""
    kind: str = ""
    fraction: float | None = None


@dataclass
class LaneView:
    """One lane as shown. `title`: one of NAMES. `how`: where its tokens come from, in words. `state`: "", "waiting",
    "running", "done" or "stopped". `cut`: whether the limit of tokens ended it."""

    title: str
    state: str = ""
    cut: bool = False
    name: str = ""
    how: str = ""
    drafting: bool = False
    rounds: list[Round] = field(default_factory=list)
    log: str = ""
    timing: dict[str, Any] | None = None  # once the lane has ended
    segments: list[tuple[str, int]] = field(default_factory=list)  # each with its tokens, once the lane has ended
    cached: facts.Figure | None = None  # tokens from the cache, once the lane has ended
    _measured: metrics.Metrics = field(init=False)
    _measured_rounds: int = -1

    def __post_init__(self) -> None:
        self.name = self.title

    def start(self, lane: Lane) -> None:
        """Show that the lane is running."""
        self.name, self.drafting, self.state = lane.name, lane.drafter != "none", "running"
        self.title, self.how = NAMES[self.drafting], facts.how(lane)

    def finish(self, trace: Trace) -> None:
        """Show the lane as it ended."""
        if trace.rounds != tuple(self.rounds):  # a server reported more at the end
            self.rounds, self.log = list(trace.rounds), log(trace.rounds)
        self._measured, self._measured_rounds = metrics.measure(trace), len(self.rounds)
        self.state = "done" if trace.finish != "stopped" else "stopped" if trace.rounds else ""
        self.cut = trace.finish == "length"
        gaps = metrics.gaps(trace.rounds)
        self.timing = {"gaps": asdict(gaps) if gaps else None, "pass_s": metrics.plain_pass_s(trace.rounds)}
        self.segments = [(name, len([*tokens])) for name, tokens in groupby(metrics.segments(trace))]
        self.cached = facts.from_cache(trace)

    def measure(self) -> metrics.Metrics:
        """Return the lane's figures, measured again only if rounds came: doing so at every update would slow the
        decoding."""
        if len(self.rounds) != self._measured_rounds:
            self._measured = metrics.measure_rounds(self.rounds)
            self._measured_rounds = len(self.rounds)
        return self._measured

    def value(self) -> dict[str, Any]:
        """Return the lane as JSON for `assets/stage`."""
        figures = facts.figures(self.measure(), drafting=self.drafting) if self.rounds else []
        figures[1:1] = [self.cached] if self.cached else []  # after the TTFT
        figures = [figure for figure in figures if figure.label not in SAID]
        return {
            "name": self.name,
            "title": self.title,
            "how": self.how,
            "label": f"{self.title}, output",
            "state": self.state,
            "cut": self.cut,
            "figures": [asdict(f) for f in figures],
            "log": self.log,
            "timing": self.timing,
            "segments": self.segments if any(name != "answer" for name, _ in self.segments) else [],
        }


class Stage:
    """The stage shows the baseline and one other lane: after the run the fastest, or the chosen one."""

    def __init__(self, state: str = "", lanes: int = 2) -> None:
        """Make an empty stage. `lanes`: the number of lanes that will run."""
        self.lanes = [LaneView(NAMES[min(i, 1)], state) for i in range(lanes)]
        self.comparison: Comparison | None = None
        self._shown: Measured | None = None  # the chosen lane against the baseline, once they have ended
        self._pair: list[LaneView] = []  # the views of both
        self._deploy: dict[str, Any] | None = None  # the command that runs the chosen lane in an engine
        self.chosen = ""  # the name of the lane that is shown with the baseline
        self.download = 0.0  # bytes of a download that needs the user's consent
        self.repeatable = False  # whether the comparison can be run again from this page
        self.goes_on = False  # whether a turn can be added to its conversation
        self.rows: list[dict[str, Any]] = []  # the table of drafters, made once a lane, not at every update
        self.caption, self.said = drafters.CAPTION, ""  # and its verdict
        self.skipped: list[str] = []  # lanes that were left out, and why
        self.conversation: list[dict[str, str]] = []  # up to the message that is answered
        self.banner = ""  # the origin of a comparison that did not run on this page
        self.kind: Kind = ""
        self.replay: Replay = ""
        self.status = Status()

    def value(self) -> dict[str, Any]:
        """Return the JSON that `assets/stage` draws."""
        shown = self._shown
        return {
            "status": asdict(self.status),
            "lanes": [view.value() for view in (self._pair or (self.lanes[0], self.lanes[-1]))],
            "verdict": _verdict(shown, repeatable=self.repeatable),
            "deploy": self._deploy,
            "difference": _difference(shown),
            "drafters": self._drafters(),
            "offer": f"Download {gigabytes(self.download)} and run" if self.download else "",
            "banner": self.banner,
            "conversation": self.conversation,
            "goes_on": self.goes_on,
            "kind": self.kind,
            "replay": self.replay,
            "sampled": self.comparison is not None and not self.comparison.standard.request.greedy,
            "ran": _ran(shown),
            "asked": beginning(shown.base.request.question, 160) if shown else "",
        }

    def load(self, comparison: Comparison, chosen: str = "") -> None:
        """Show a comparison that has ended. `chosen`: see `finish`."""
        self.lanes = [LaneView(NAMES[min(i, 1)]) for i in range(len(comparison.lanes))]
        self.finish(comparison, chosen)

    def finish(self, comparison: Comparison, chosen: str = "") -> None:
        """Show the final state of a comparison whose lanes are shown already. `chosen`: the name of the lane that is
        shown with the baseline; "" for the one shown now or, at first, for the last of a server or the fastest."""
        for view, trace in zip(self.lanes, (comparison.standard, *comparison.others), strict=True):
            view.name = trace.lane.name  # also of a lane that was never reached
        self.rank(comparison)
        if self.comparison is None:
            in_servers = [it.lane.name for it in comparison.others if it.lane.backend != LOCAL and it.rounds]
            self.chosen = in_servers[-1] if in_servers else self.rows[0]["lane"]
        self.chosen = chosen or self.chosen
        self.comparison = comparison
        self.ask(comparison.standard.request)
        self.status = Status(facts.done(comparison))
        self.choose(self.chosen)

    def ask(self, request: Request) -> None:
        """Show the conversation that is answered."""
        turns = request.turns if len(request.turns) > 1 else ()
        self.conversation = [{"role": turn.role, "text": turn.text} for turn in turns]

    def rank(self, comparison: Comparison) -> None:
        """Make the table of the drafters that have run."""
        self.rows = [asdict(row) for row in drafters.of(comparison)]
        self.caption, self.said = drafters.caption(comparison), drafters.verdict(comparison)

    def choose(self, name: str) -> None:
        """Show this lane with the baseline."""
        assert self.comparison, "a comparison that has ended"
        self.chosen = name
        self._shown = metrics.measured(self.comparison, name)
        self._pair = [LaneView(title) for title in NAMES]
        for view, trace in zip(self._pair, (self._shown.base, self._shown.ours), strict=True):
            view.start(trace.lane)
            view.finish(trace)
        found = engines.first(engines.of_comparison(self.comparison, self._shown.ours.lane))
        self._deploy = asdict(found) if found else None

    def _drafters(self) -> dict[str, Any] | None:
        """Return the table of all drafters so far; None for a comparison of two lanes, or one that never began."""
        if len(self.lanes) + len(self.skipped) <= 2 or (self.status.kind == "error" and not self.rows):
            return None
        ran = {row["lane"] for row in self.rows}
        to_come = [view.name for view in self.lanes[1:] if view.name not in ran]
        ready = self.comparison is not None
        return {
            "verdict": self.said if ready else f"{len(ran)} of {len(ran) + len(to_come)} drafters have answered.",
            "caption": self.caption,
            "head": list(drafters.HEAD),
            "rows": [*self.rows, *({"lane": name} for name in to_come)],
            "chosen": self.chosen,
            "ready": ready,
            "skipped": self.skipped,
        }


def replaying(comparison: Comparison, chosen: str = "") -> Stage:
    """Return the stage of a comparison from elsewhere, which replays in a loop. `chosen`: the name of the lane that is
    shown with the baseline; "" for the fastest."""
    shown = Stage()
    shown.load(comparison, chosen)
    shown.replay = "loop"
    return shown


def packed(value: dict[str, Any]) -> dict[str, Any]:
    """Return a stage's value as three strings: Gradio clones each leaf of a value in the browser at every update, and
    the decoding may share its cores. The logs are separate, because of a string that grew only the new part is sent."""
    lanes = [{name: part for name, part in lane.items() if name != "log"} for lane in value["lanes"]]
    return {"rest": json.dumps(value | {"lanes": lanes}), "logs": [lane["log"] for lane in value["lanes"]]}


def _verdict(measured: Measured | None, *, repeatable: bool) -> dict[str, Any]:
    """Return the headline, its terms, why to doubt it, and further remarks on both lanes."""
    if measured is None:
        return {
            "figure": "",
            "meaning": "",
            "runs": "",
            "terms": None,
            "repeatable": False,
            "trust": "",
            "badges": [],
            "sentences": [],
            "notes": [],
        }
    equation, doubts = measured.equation, headline.doubts(measured)
    return {
        "figure": headline.figure(measured),
        "meaning": headline.meaning(measured)
        + (", same text" if measured.speedup and measured.difference is None else ""),
        "runs": headline.runs(measured) if measured.speedup else "",
        "terms": asdict(equation) if equation else None,
        "repeatable": repeatable,
        "trust": "doubtful" if doubts else "holds",
        "badges": [*doubts],
        "sentences": facts.sentences(measured),
        "notes": facts.notes(measured.base, measured.ours),
    }


def _ran(found: Measured | None) -> str:
    """Return model, device and date, for the picture."""
    if found is None:
        return ""
    lane, environment = found.ours.lane, found.ours.environment
    return f"{lane.target} · {facts.environment_line(environment)} · {environment.created[:10]}"


def _difference(measured: Measured | None) -> dict[str, Any] | None:
    """Return where the outputs of the two lanes differ: the index of the first token, counted over output tokens from
    0."""
    if measured is None:
        return None
    baseline, other, found = measured.base, measured.ours, measured.difference
    if found is None or baseline.totals or other.totals or found.index >= min(len(baseline.tokens), len(other.tokens)):
        return None
    greedy = baseline.request.greedy
    margin = found.margin if greedy else None  # it does not explain sampled tokens
    texts = [lane.tokens[found.index].text for lane in (baseline, other)]
    return {
        "index": found.index,
        "margin": margin,
        "texts": texts,
        "total": len(baseline.tokens),
        "expected": not greedy,
    }
