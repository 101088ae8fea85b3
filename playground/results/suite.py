"""The result of a suite of prompts: rows, their summaries, failures; and which lanes are the fastest."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, Field

from playground.lane import STANDARD as BASELINE
from playground.lane import Lane, Request, names
from playground.metrics import (
    BothRules,
    Over,
    Pooled,
    PositionAcceptance,
    SegmentFigures,
    Timed,
    acceptance_rate,
    differs,
    mean_accepted_length,
    pooled,
)
from playground.trace import Environment, Trace

STANDARD = "standard"  # the label of the baseline's rows
ALL = "all"  # the category of the summary over all prompts
Interval = tuple[float, float]
# "otherwise" in files of earlier releases.
OfBothRules = Annotated[BothRules | None, Field(validation_alias=AliasChoices("both_rules", "otherwise"))]


def names_of(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return the displayed name of each lane of a result, by its label, the baseline included."""
    return {STANDARD: BASELINE, **names(lanes)}


@dataclass(frozen=True)
class Row:
    """One prompt (a turn of a question) through one lane. Of several runs, `seconds` is the median, and all other
    fields are of the run with the median time; `runs_s` and `runs_tokens` have all, in the order in which they ran.

    `speedup`: the tokens per second of all runs over those of the standard lane, with its `interval` over the runs
    where they are enough (see `metrics.pooled`). `passes`, `accepted`, `drafted`: None where a server does not report
    it. `p50_s`, `p95_s`: of the inter-token latencies. `identical`: every run gave the same tokens as every run of the
    standard lane. `reused`: tokens of the prompt that came from the cache of the turns before. `both_rules`: the drafts
    under the other exact rule. `conversation`: see `Question`. `past_context`: see `Round`, where the text was too long
    for the drafter in any round. Files of earlier releases lack what is None or empty here.
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
    both_rules: OfBothRules = None
    conversation: int | None = None
    past_context: int | None = None

    @property
    def unit(self) -> tuple[str, int]:
        """What its question or logged conversation is called: turns of one depend on each other, since each reads the
        ones before."""
        if self.conversation is None:
            return "question", self.question
        return "conversation", self.conversation

    @property
    def timed(self) -> Timed:
        seconds = self.runs_s or (self.seconds,)
        return Timed(self.runs_tokens or (self.tokens,) * len(seconds), seconds)

    @property
    def total_s(self) -> float:
        return self.seconds

    @property
    def mean_accepted_length(self) -> float | None:
        return mean_accepted_length(self.tokens, self.passes)

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.drafted)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all time."""
        return sum(self.timed.tokens) / sum(self.timed.seconds)


@dataclass(frozen=True)
class Failure:
    """A question that could not be run through a lane, and why, in words. The suite continued without it."""

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
    says; it holds for all lanes of the category together, in files of earlier releases for each alone. `rank`
    says which lanes gain. `tokens_per_s` is pooled; `total_s`, `ttft_s`, `p50_s` and `p95_s` are medians over prompts.
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
    both_rules: OfBothRules = None


@dataclass(frozen=True)
class SuiteResult:
    """The result of a suite. `request`: the settings all prompts share; its prompt is the first. `runs`: how often each
    prompt went through each lane; `counted`: which of the runs make the speed-ups. `seed`: of the order of the lanes.
    `prompts`: the first turn of every question. `traces`: every run, in the order of the rows; files leave them out."""

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
        """True where a prompt could not be run."""
        return bool(self.failures)

    def of(self, lane: str) -> Summary:
        """Return the summary of a lane over all prompts, by its label."""
        return next(each for each in self.summaries if (each.lane, each.category) == (lane, ALL))


# The ranking of the lanes, from the rows: verdict, sentence, colour and command follow it.


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Ranked:
    """A lane over all prompts of a suite. `speedup`: over the standard lane, with the interval that decides and what it
    is over; None where there are too few prompts and runs, and for the standard lane. `ties`: it is the fastest, or
    cannot be distinguished from it."""

    lane: str
    speedup: float
    interval: tuple[float, float] | None
    over: Over | None
    ties: bool

    @property
    def gains(self) -> bool:
        """True where the lane was seen to be faster than standard decoding."""
        return self.interval is not None and self.interval[0] > 1

    @property
    def loses(self) -> bool:
        """True where the lane was seen to be slower."""
        return self.interval is not None and self.interval[1] < 1


def rank(rows: Sequence[Row], lanes: Iterable[str] = ()) -> list[Ranked]:
    """Return the lanes, the fastest first.

    The intervals over the standard lane hold for all drafting lanes of the suite together (Bonferroni). Which lanes tie
    is decided by the ratio of the fastest to each of the others on the same prompts and runs; any of them might have
    been the fastest, so these intervals hold for all pairs of lanes together.

    Args:
        lanes: those among which the fastest is sought; empty for all.
    """
    ratios = speedups(rows)
    best, *others = sorted(lanes or ratios, key=lambda name: -ratios[name].speedup)
    pairs = math.comb(len(ratios) - 1, 2)

    def ties(name: str) -> bool:
        if STANDARD in (best, name):
            it = ratios[name if best == STANDARD else best]
        else:
            it = ratio(rows, best, over=name, comparisons=pairs)
        return not differs(it.interval) if it.interval else it.speedup == 1

    return [
        Ranked(name, ratios[name].speedup, ratios[name].interval, ratios[name].over, name == best or ties(name))
        for name in (best, *others)
    ]


def speedups(rows: Sequence[Row]) -> dict[str, Pooled]:
    """Return the speed-up of every lane over the standard one, the standard lane last. The intervals hold for all
    together (Bonferroni)."""
    drafting = list(dict.fromkeys(row.lane for row in rows if row.lane != STANDARD))
    return {name: ratio(rows, name, comparisons=len(drafting)) for name in drafting} | {STANDARD: Pooled(1.0)}


def ratio(rows: Sequence[Row], lane: str, over: str = STANDARD, comparisons: int = 1) -> Pooled:
    """Return the speed-up of one lane over another on the same prompts, with its interval. `comparisons`: see
    `metrics.pooled`."""
    base, ours = ([(row.unit, row.timed) for row in rows if row.lane == name] for name in (over, lane))
    return pooled(by_unit(base), by_unit(ours), comparisons)


def by_unit(parts: Iterable[tuple[Hashable, Timed]]) -> list[Timed]:
    """Add up the times of each unit of `Row.unit`: an interval draws the turns of a conversation together."""
    of: dict[Hashable, list[Timed]] = {}
    for unit, timed in parts:
        of.setdefault(unit, []).append(timed)
    return [
        Timed(_by_run(turn.tokens for turn in turns), _by_run(turn.seconds for turn in turns)) for turns in of.values()
    ]


def _by_run(turns: Iterable[tuple[N, ...]]) -> tuple[N, ...]:
    """Return each run's sum over the turns."""
    return tuple(map(sum, zip(*turns, strict=True)))
