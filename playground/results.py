"""Results that are computed from many traces: a suite's rows and summaries, and what the benchmark measured.
Dataclasses, and the JSON files that keep them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from playground import validation
from playground.errors import PlaygroundError, check
from playground.export import LANE, SCHEMA_VERSION, environment_from_1
from playground.lane import STANDARD as BASELINE
from playground.lane import Axis, Lane, Request, label, names
from playground.metrics import (
    AcceptanceTest,
    LawTest,
    NearTie,
    Otherwise,
    Over,
    PositionAcceptance,
    SegmentFigures,
    Timed,
    differs,
)
from playground.metrics import load as under_load
from playground.metrics.depth import DepthFigures
from playground.metrics.estimate import Counts
from playground.trace import Environment, Trace

STANDARD = "standard"  # the label of the baseline's rows
ALL = "all"  # the category of the summary over all prompts
Interval = tuple[float, float]


def names_of(lanes: Iterable[Lane]) -> dict[str, str]:
    """What people read of each lane of a result, by its label; of the baseline's rows too."""
    return {STANDARD: BASELINE, **names(lanes)}


@dataclass(frozen=True)
class Row:
    """One prompt (a turn of a question) through one lane. Of several runs, `seconds` is the median, and all else is of
    the run with the median time; `runs_s` and `runs_tokens` have all, in the order in which they ran.

    `speedup`: of all its tokens over all its time, over the standard lane's, with its `interval` over the runs where
    they are enough (see `metrics.pooled`). `passes`, `accepted`, `drafted`: None where a server does not report it.
    `p50_s`, `p95_s`: of the inter-token latencies. `identical`: every run gave the same tokens as every run of the
    standard lane. `reused`: tokens of the prompt that came from the cache of the turns before. `otherwise`: what the
    other exact rule would have kept. `conversation`: as in `Question`. Files of earlier releases lack what is None or
    empty here.
    """

    question: int
    category: str
    lane: str
    tokens: int
    passes: int | None
    seconds: float
    drafting_s: float | None
    accepted: int | None
    drafted: int | None
    speedup: float
    identical: bool
    turn: int = 1
    ttft_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    runs_s: tuple[float, ...] = ()
    runs_tokens: tuple[int, ...] = ()
    interval: Interval | None = None
    positions: tuple[PositionAcceptance, ...] = ()
    segments: tuple[SegmentFigures, ...] = ()
    reused: int | None = None
    otherwise: Otherwise | None = None
    conversation: int | None = None

    @property
    def timed(self) -> Timed:
        seconds = self.runs_s or (self.seconds,)
        return Timed(self.runs_tokens or (self.tokens,) * len(seconds), seconds)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all time."""
        return sum(self.timed.tokens) / sum(self.timed.seconds)


@dataclass(frozen=True)
class Failure:
    """A question that could not be run through a lane, and why, in words. The suite went on without it."""

    question: int
    category: str
    lane: str
    reason: str


@dataclass(frozen=True)
class QuestionResult:
    """A question that has gone through all lanes: a row for each turn and lane, or one failure and no rows. `traces`:
    every run, in the order of the rows."""

    question: int
    rows: tuple[Row, ...] = ()
    failure: Failure | None = None
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A lane over the prompts of a category, or over all.

    `speedup`: the median over prompts, `low` and `high` its quartiles. `macro`: the geometric mean over prompts, each
    counting the same. `overall`: pooled, so that long answers count more, with its `interval` over what `over`
    says. `tokens_per_s` is pooled; `total_s`, `ttft_s`, `p50_s` and `p95_s` are medians over prompts.
    """

    lane: str
    category: str
    prompts: int
    mean_accepted_length: float | None
    acceptance_rate: float | None
    speedup: float
    low: float
    high: float
    overall: float
    interval: Interval | None
    identical: int
    macro: float | None = None
    over: Over | None = None
    tokens_per_s: float | None = None
    total_s: float | None = None
    ttft_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    positions: tuple[PositionAcceptance, ...] = ()
    segments: tuple[SegmentFigures, ...] = ()
    otherwise: Otherwise | None = None

    @property
    def gains(self) -> bool:
        """Whether the lane was seen to be faster than standard decoding, which takes an interval."""
        return self.overall > 1 and differs(self.interval)


@dataclass(frozen=True)
class SuiteResult:
    """`request`: the settings all prompts share; its prompt is the first. `runs`: how often each prompt went through
    each lane; `counted`: which of the runs make the speed-ups. `seed`: of the order of the lanes. `prompts`: the first
    turn of every question. `traces`: every run, in the order of the rows; files leave them out."""

    environment: Environment
    request: Request
    runs: int
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...]
    traces: tuple[Trace, ...] = ()
    failures: tuple[Failure, ...] = ()
    prompts: tuple[str, ...] = ()
    seed: int | None = None
    counted: Literal["fastest", "median", "all"] = "fastest"

    @property
    def failed(self) -> bool:
        """Whether a prompt could not be run."""
        return bool(self.failures)

    def of(self, lane: str) -> Summary:
        """A lane over all prompts, by its label."""
        return next(each for each in self.summaries if (each.lane, each.category) == (lane, ALL))


@dataclass(frozen=True)
class Predicted:
    """What the formulas say of a lookahead over all prompts, prefill included, from the drafts at the largest one."""

    tokens_per_pass: float
    speedup: float


@dataclass(frozen=True)
class Point:
    """One value of a sweep. `summaries`: its lane's, by category and then over all; empty if no prompt could be run.
    `best`: no other value is faster over all prompts. `ties`: it is the best, or the interval of the best over it
    includes 1. Both None on an axis whose values nobody chooses for speed. `predicted`: of chains, where it can be."""

    value: float
    lane: str
    summaries: tuple[Summary, ...]
    best: bool | None = None
    ties: bool | None = None
    predicted: Predicted | None = None

    @property
    def overall(self) -> Summary | None:
        return self.summaries[-1] if self.summaries else None


@dataclass(frozen=True)
class SweepResult:
    """A suite in which one setting takes several values, its points in their order. At `lookahead` 0 the standard lane
    runs. `prompt_tokens` count the chat template too."""

    axis: Axis
    points: tuple[Point, ...]
    suite: SuiteResult

    @property
    def failed(self) -> bool:
        return self.suite.failed


@dataclass(frozen=True)
class AcceptanceResult:
    """Speed-up over acceptance: a suite of one lane as it is, and of the same with drawn verdicts at several rates."""

    suite: SuiteResult

    @property
    def failed(self) -> bool:
        return self.suite.failed

    @property
    def measured(self) -> Summary | None:
        """The lane as it is, over all prompts; None if no prompt could be run."""
        return self._of(self.suite.lanes[0])

    @property
    def curve(self) -> list[tuple[float, Summary | None]]:
        """Each rate with its lane over all prompts."""
        return [(lane.drawn[0], self._of(lane)) for lane in self.suite.lanes[1:]]

    def _of(self, lane: Lane) -> Summary | None:
        return self.suite.of(label(lane)) if self.suite.rows else None


@dataclass(frozen=True)
class Measurement:
    """One value a run, or a pair of runs. `unit` is "×" for a ratio. `identical`: whether the outputs of all pairs were
    the same tokens; None if that is not compared. `traces`: our runs; files leave them out."""

    what: str
    values: tuple[float, ...]
    median: float
    unit: str = "×"
    identical: bool | None = None
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class Differing:
    """The first token in which a lane's greedy output differs from standard decoding's: its index, both texts ("" past
    an output's end), and how close the choice was; None where one output ended before the other."""

    question: int
    turn: int
    index: int
    standard: str
    other: str
    near_tie: NearTie | None

    @property
    def fault(self) -> bool:
        return self.near_tie is None or not self.near_tie.tie


@dataclass(frozen=True)
class LaneCheck:
    """Whether a lane's output is the target's own. `lane`: its label. `outputs`: greedy ones that were compared, of
    which `identical` were the same tokens. `sampled`: tokens. `law`: of those among them at positions where a draft
    token was verified (of the standard lane, and of rules that judge drafts as a whole, of all). Tests are None where
    there were too few tokens."""

    lane: str
    outputs: int
    identical: int
    differing: tuple[Differing, ...]
    sampled: int
    law: LawTest | None
    acceptance: AcceptanceTest | None

    @property
    def faults(self) -> tuple[Differing, ...]:
        return tuple(each for each in self.differing if each.fault)

    @property
    def passed(self) -> bool:
        return not self.faults and all(test.passed for test in (self.law, self.acceptance) if test)


@dataclass(frozen=True)
class LosslessResult:
    """`checks`: of the standard lane, as a control, and of each of `lanes`. `request`: of the last sampled answer."""

    environment: Environment
    request: Request
    lanes: tuple[Lane, ...]
    checks: tuple[LaneCheck, ...]
    prompts: tuple[str, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a lane is not lossless."""
        return not all(check.passed for check in self.checks)


@dataclass(frozen=True)
class Recommendation:
    """`lane`: what to use; None is standard decoding. `tested`: the lane that ran again, which is the recommended one
    or, where that is none, the best that there was. `method`: whose weights it drafts with. `ties`: the labels of the
    refined lanes within noise of the fastest, the fastest first. `confirmed` alone gives the speed-up to expect: its
    runs were not used to choose."""

    lane: Lane | None
    tested: Lane
    method: str | None
    ties: tuple[str, ...]
    screened: SuiteResult
    refined: SuiteResult
    confirmed: SuiteResult

    failed = False

    @property
    def summary(self) -> Summary:
        """Of the tested lane, over all prompts, by the confirming runs."""
        return self.confirmed.of(label(self.tested))


@dataclass(frozen=True)
class LaneDepths:
    """A lane's figures by depth. `lane`: its label."""

    lane: str
    figures: tuple[DepthFigures, ...]


@dataclass(frozen=True)
class Estimated:
    """What a lane was expected to accept, from its drafts over logged answers. `decoded`: the mean accepted length of
    the turns that were decoded; None where none was."""

    lane: str
    counts: Counts
    tokens_per_pass: float
    decoded: float | None


@dataclass(frozen=True)
class TrafficResult:
    """A log of conversations. `suite`: the turns that were generated again, each a question whose category is its
    number. `turns`: of the whole log. `best`: the label of the fastest lane, with its speed-up and an interval that
    holds for all lanes together (None where there is too little to say). `skipped`: a sentence for each entry that was
    left out."""

    suite: SuiteResult
    conversations: int
    turns: int
    best: str
    speedup: float
    interval: Interval | None
    depths: tuple[LaneDepths, ...]
    estimates: tuple[Estimated, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a turn could not be run, or an entry was left out."""
        return self.suite.failed or bool(self.skipped)

    @property
    def pays(self) -> bool:
        """Whether speculation was seen to pay, which takes an interval."""
        return self.speedup > 1 and differs(self.interval)


@dataclass(frozen=True)
class DepthResult:
    """A conversation that grows to `until` tokens of context. `suite`: its turns. `depths`: of the baseline and of the
    lane. `stops`: the depth from which on the lane is nowhere faster; None if it is, to the end."""

    suite: SuiteResult
    depths: tuple[LaneDepths, ...]
    until: int
    stops: int | None

    @property
    def failed(self) -> bool:
        """Whether it did not get to its end."""
        return self.suite.failed


@dataclass(frozen=True)
class LoadResult:
    """Servers under load. `lanes`: the baseline first; `environments`: theirs. `request`: the settings all prompts
    share; its prompt is the first. `levels`: those asked for, of which a test that was stopped has not all, `requests`
    of each; `seed`: of the arrival times in open loop. `rows`: every request of the levels that ended. `points` and
    `gains` are computed from them."""

    environments: tuple[Environment, ...]
    request: Request
    lanes: tuple[Lane, ...]
    levels: tuple[under_load.Level, ...]
    requests: int
    seed: int
    limits: under_load.Limits
    rows: tuple[under_load.Answered, ...]
    points: tuple[under_load.Point, ...]
    gains: tuple[under_load.Gain, ...]

    @property
    def failures(self) -> tuple[under_load.Answered, ...]:
        return tuple(row for row in self.rows if row.error)

    @property
    def failed(self) -> bool:
        """Whether a request failed."""
        return bool(self.failures)


@dataclass(frozen=True)
class BenchResult:
    environment: Environment
    results: tuple[Measurement, ...]

    failed = False


OfSuites = SuiteResult | SweepResult | Recommendation | TrafficResult | DepthResult
Result = OfSuites | LosslessResult | AcceptanceResult | LoadResult | BenchResult
CHOOSE = (
    "Choose a file that `--json` of suite, sweep, recommend, lossless, traffic, depth, acceptance, load or bench wrote."
)
KINDS: dict[str, type] = {
    "suite": SuiteResult,
    "sweep": SweepResult,
    "lossless": LosslessResult,
    "recommend": Recommendation,
    "traffic": TrafficResult,
    "depth": DepthResult,
    "acceptance": AcceptanceResult,
    "load": LoadResult,
    "bench": BenchResult,
}


def to_json(result: Result) -> dict[str, Any]:
    """As JSON takes it, without the traces."""
    kind = next(name for name, kind in KINDS.items() if isinstance(result, kind))
    return {"schema_version": SCHEMA_VERSION, "kind": kind, **_without_traces(asdict(result))}


def load(text: str | bytes) -> Result:
    """Reads a file of results, now or from an earlier release.

    Raises:
        PlaygroundError: it is not JSON, not such a file, or of a newer schema version.
    """
    try:
        data = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        raise PlaygroundError(f"This file is not JSON. {CHOOSE}") from None
    return from_json(data)


def from_json(data: Any) -> Result:
    """Reads what `to_json` made, now or in an earlier release.

    Raises:
        PlaygroundError: the data is no result, or of a newer schema version.
    """
    named = isinstance(data, dict) and data.get("kind") in KINDS
    older = isinstance(data, dict) and "kind" not in data and bool({"rows", "results"} & set(data))
    check(named or older, f"This file holds no results. {CHOOSE}")
    kind = data.get("kind", "suite" if "rows" in data else "bench")
    if "schema_version" not in data:
        check(isinstance(data.get("environment"), dict), "This file holds no results: it names no machine.")
        data = _from_version_1(data)
    check(
        data["schema_version"] in (2, SCHEMA_VERSION),  # in 2, seconds include the annotation of rounds
        f"These results have schema version {data['schema_version']!r}; this playground reads versions 1 to "
        f"{SCHEMA_VERSION}. Open them with the release that wrote them.",
    )
    return validation.read(KINDS[kind], data, extra="ignore")


def _without_traces(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_traces(value) for key, value in data.items() if key != "traces"}
    return [_without_traces(item) for item in data] if isinstance(data, (list, tuple)) else data


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """The first files of suites lack `runs`, and some settings of the lane that have defaults."""
    migrated = {"runs": 1, **data, "schema_version": SCHEMA_VERSION}
    migrated["environment"] = environment_from_1(data["environment"])
    if isinstance(data.get("lanes"), list):
        migrated["lanes"] = [
            {key: lane[key] for key in LANE if key in lane} if isinstance(lane, dict) else lane
            for lane in data["lanes"]
        ]
    return migrated
