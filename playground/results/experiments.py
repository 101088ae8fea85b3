"""The results of all experiments other than a suite."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from playground.lane import LOCAL, Axis, Lane, Request, label
from playground.metrics import AcceptanceTest, LawTest, Logprobs, NearTie, differs
from playground.metrics import load as under_load
from playground.metrics.depth import EDGES, DepthFigures, by_depth
from playground.metrics.drafts import Counts, clearly_better, wilson
from playground.results.suite import Failure, Interval, SuiteResult, Summary
from playground.trace import Environment, Trace


@dataclass(frozen=True)
class Predicted:
    """The formulas' prediction for a lookahead over all prompts, prefill included, from the drafts at the largest
    one."""

    tokens_per_pass: float
    speedup: float


@dataclass(frozen=True)
class Point:
    """One value of a sweep. `summaries`: its lane's, by category and then over all; empty if no prompt could be run.
    `best`: no other value is faster over all prompts. `ties`: it is the best, or the interval of the best over it
    includes 1. Both are None on an axis whose values are not chosen for speed. `predicted`: for chains, where
    possible."""

    value: float
    lane: str
    summaries: tuple[Summary, ...]
    best: bool | None = None
    ties: bool | None = None
    predicted: Predicted | None = None

    @property
    def overall(self) -> Summary | None:
        """The summary over all prompts; None if no prompt could be run."""
        return self.summaries[-1] if self.summaries else None


@dataclass(frozen=True)
class LaneDepths:
    """A lane's figures by depth. `lane`: its label."""

    lane: str
    figures: tuple[DepthFigures, ...]


def depths_of(suite: SuiteResult, edges: Sequence[int] = EDGES) -> tuple[LaneDepths, ...]:
    """Return the figures of the baseline and of each lane by the depth of the context, from the traces. `edges`: see
    `metrics.by_depth`."""
    of: dict[str, list[Trace]] = {row.lane: [] for row in suite.rows}
    units: dict[str, list[Hashable]] = {name: [] for name in of}
    runs = [row for row in suite.rows for _ in row.timed.seconds]
    for row, trace in zip(runs, suite.traces, strict=True):
        of[row.lane].append(trace)
        units[row.lane].append(row.unit)
    return tuple(LaneDepths(name, tuple(by_depth(traces, edges, units[name]))) for name, traces in of.items())


@dataclass(frozen=True)
class SweepResult:
    """A suite in which one setting takes several values, its points in their order. At `lookahead` 0 the standard lane
    runs. `prompt_tokens` count the chat template too. For `acceptance` the first lane is the drafter as it is, and the
    others have their verdicts drawn at the rates. For `depth` the suite is one conversation, and `depths` has the
    figures of the baseline and of the lane in place of points."""

    axis: Axis
    points: tuple[Point, ...]
    suite: SuiteResult
    depths: tuple[LaneDepths, ...] = ()

    @property
    def failed(self) -> bool:
        """True where a prompt could not be run, or a conversation did not reach its end."""
        return self.suite.failed


def rates_of(suite: SuiteResult) -> tuple[Point, ...]:
    """Return the points of a sweep over rates of acceptance, whose first lane is the drafter as it is."""
    return tuple(
        Point(lane.forced_rates[0], label(lane), tuple(it for it in suite.summaries if it.lane == label(lane)))
        for lane in suite.lanes[1:]
    )


@dataclass(frozen=True)
class Differing:
    """The first token in which a lane's greedy output differs from standard decoding's: its index, both texts ("" past
    an output's end), and how close the choice was; None where one output ended before the other. `judged`: False where
    a server reports nothing by which to tell rounding from a fault."""

    question: int
    turn: int
    index: int
    standard: str
    other: str
    near_tie: NearTie | None
    judged: bool = True

    @property
    def fault(self) -> bool:
        """True where rounding does not explain the difference."""
        return self.judged and (self.near_tie is None or not self.near_tie.tie)


@dataclass(frozen=True)
class LaneCheck:
    """The check that a lane's output is the target's own. `lane`: its label. `outputs`: the greedy outputs compared, of
    which `identical` were the same tokens. `sampled`: the number of sampled tokens. `law`: the test of those at
    positions where a draft token was verified (of all for the standard lane, and for rules that judge drafts as a
    whole). `bonus`: the test of those after a draft that was accepted as a whole. `corrected`: of those in place of
    drafted ones, where these were chosen and not sampled. Tests are None where there were too few tokens.

    Of a server's lane: `logprobs`, `control`, `law`, `against` and `bonus` are those of a `metrics.ServerTest`; `law`
    decides nothing beside `against`. Where it gives no log-probabilities ("none"), `against` is the test of the first
    words of its answers against the baseline's. Else `drafted` is the number of tokens of greedy outputs in whose place
    it verified a draft."""

    lane: str
    outputs: int
    identical: int
    differing: tuple[Differing, ...]
    sampled: int
    law: LawTest | None
    acceptance: AcceptanceTest | None
    logprobs: Logprobs | None = None
    control: LawTest | None = None
    against: LawTest | None = None
    drafted: int | None = None
    bonus: LawTest | None = None
    corrected: LawTest | None = None

    @property
    def faults(self) -> tuple[Differing, ...]:
        return tuple(each for each in self.differing if each.fault)

    @property
    def passed(self) -> bool:
        tests = (self.against or self.law, self.acceptance, self.bonus, self.corrected)
        return not self.faults and all(test.passed for test in tests if test)


@dataclass(frozen=True)
class LosslessResult:
    """The checks of several lanes. `checks`: of each of `lanes`, and first of the standard lane of this process, as a
    control. `request`: of the last sampled answer. `baseline`: what a server was compared with; None for lanes of this
    process."""

    environment: Environment
    request: Request
    lanes: tuple[Lane, ...]
    checks: tuple[LaneCheck, ...]
    prompts: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    baseline: Lane | None = None

    @property
    def failed(self) -> bool:
        """True where a lane is not lossless."""
        return not all(check.passed for check in self.checks)

    @property
    def baseline_server(self) -> Lane | None:
        """The lane of another server, without speculation, that a server was compared with."""
        return self.baseline if self.baseline and self.baseline.backend not in (LOCAL, self.lanes[0].backend) else None

    def unsure(self, check: LaneCheck) -> bool:
        """Return True where no difference from tokens drawn alone was found, but verified tokens do not follow
        log-probabilities that those do; or those do not either, and no other server shows whether they have to."""
        missed = check.law is not None and not check.law.passed
        return check.passed and (missed or (check.logprobs == "wrong" and self.baseline_server is None))


@dataclass(frozen=True)
class Recommendation:
    """The lane to use. `lane`: None is standard decoding. `tested`: the lane that ran again, which is the recommended
    one or, where that is None, the best drafting lane. `method`: whose weights it uses. `ties`: the labels of the
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
        """The summary of the tested lane over all prompts, from the confirming runs."""
        return self.confirmed.of(label(self.tested))


@dataclass(frozen=True)
class Estimated:
    """The acceptance expected for a lane at a constant lookahead, from its drafts over logged answers.
    `tokens_per_pass`: over the rounds that decoding would have. `decoded`: the mean accepted length of the turns that
    were decoded, under the lane's own policy; None where none was."""

    lane: str
    counts: Counts
    tokens_per_pass: float
    decoded: float | None


@dataclass(frozen=True)
class TrafficResult:
    """The result of a log of conversations. `suite`: the turns that were generated again, each a question whose
    category is its number. `turns`: of the whole log. `best`: the label of the fastest lane, with its speed-up and an
    interval that holds for all lanes together (None where there is too little data). `skipped`: a sentence for each
    entry that was left out."""

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
        """True where a turn could not be run, or an entry was left out."""
        return self.suite.failed or bool(self.skipped)

    @property
    def pays(self) -> bool:
        """True where speculation was seen to pay, which takes an interval."""
        return self.speedup > 1 and differs(self.interval)


@dataclass(frozen=True)
class LoadResult:
    """The result of servers under load. `lanes`: the baseline first; `environments`: theirs. `request`: the settings
    all prompts share; its prompt is the first. `levels`: the requested ones, not all of which a stopped test has, with
    `requests` each; `seed`: of the arrival times in open loop. `rows`: every request of the levels that ended. `points`
    and `gains` are computed from them."""

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
        """True where a request failed."""
        return bool(self.failures)


Mark = Literal["broken", "mismatched", "suspect", "note"]
Verdict = Literal["broken", "mismatched", "misread", "collapsed", "unknown", "weak", "healthy"]
MASK = "mask token"  # what a finding about it is about
OF_WEIGHTS = ("own_embedding", "own_head", "draft_ids_shift")  # fields of a reading that replace a drafter's weights
WEAK = 0.5  # acceptance of the first token below which a drafter that is read rightly is called weak
CLEARS, BY_FAR = 2.0, 2.25  # times what chance gives: acceptance that clears it, and by so much that it may be weakness


@dataclass(frozen=True)
class Finding:
    """What a drafter's files say that does not fit. `about`: the part, in a word or two. `said`: a sentence with the
    evidence. A "suspect" may be a cause of low acceptance, and is none that was shown."""

    mark: Mark
    about: str
    said: str


@dataclass(frozen=True)
class Scored:
    """Drafts over the target's answers. `name`: of the reading, "" for the drafter as it is; or of another drafting
    method. `override`: what a pair file carries to read it so."""

    name: str
    override: Mapping[str, Any]
    counts: Counts


@dataclass(frozen=True)
class Trials:
    """First draft tokens of a drafter that drafts badly, at some positions of the target's answers. `plain`: as it is.
    `control`: with the target's states of other positions; None for a drafter that reads none. `mended`: with the
    repairs that were seen to help; None if none was. Its override is empty where weights were changed."""

    plain: Scored
    control: Scored | None
    mended: Scored | None


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a drafter. `method`: whose weights were examined. `readings`: the drafter as it is, then its
    other readings; empty where it was refused, or where its drafts cannot be made at all positions at once. `chance`:
    the acceptance of always drafting the target's most common token. `categories`: of the prompts. `others`: what
    lookups give on the same answers. `templates`: the drafter as it is over answers with the chat template's switch for
    thinking turned."""

    environment: Environment
    request: Request
    lane: Lane
    method: str
    prompts: tuple[str, ...]
    findings: tuple[Finding, ...]
    readings: tuple[Scored, ...]
    chance: float
    categories: tuple[Scored, ...]
    others: tuple[Scored, ...]
    failures: tuple[Failure, ...] = ()
    templates: tuple[Scored, ...] = ()
    trials: Trials | None = None

    @property
    def low(self) -> bool:
        """True where fewer first tokens are accepted than of a drafter that is worth having."""
        return self.first is not None and self.first < WEAK

    @property
    def better(self) -> Scored | None:
        """The best of the readings that are clearly better than the drafter as it is; of a weak one, of the templates
        too. Where its mask is suspicious, less is asked of another mask."""
        tried = (*self.readings[1:], *(self.templates if self.low else ()))
        doubted = any(it.about == MASK for it in self.findings)
        found = [
            it
            for it in tried
            if clearly_better(it.counts, self.readings[0].counts, doubted and "mask_token_id" in it.override)
        ]
        return max(found, key=lambda it: it.counts.tokens_per_pass, default=None)

    @property
    def mended(self) -> Scored | None:
        """What mends it: repairs, or a reading that is clearly better, whichever gives more first tokens."""
        tried = [it for it in (self.trials.mended if self.trials else None, self.better) if it]
        return max(tried, key=lambda it: it.counts.accepted[0] / it.counts.reached[0], default=None)

    @property
    def first(self) -> float | None:
        """The acceptance of the first drafted token over all positions, of the drafter as it is."""
        counts = self.readings[0].counts if self.readings else None
        return counts.accepted[0] / counts.reached[0] if counts and counts.reached[0] else None

    @property
    def by_chance(self) -> float:
        """The acceptance that chance gives: that of the target's most common token, or of the drafter with the target's
        states of other positions, where this was tried and is larger."""
        control = self.trials.control.counts if self.trials and self.trials.control else None
        return max(self.chance, control.accepted[0] / control.reached[0] if control else 0.0)

    @property
    def at_least(self) -> float:
        """The lower end of the 95 % interval of `first` (Wilson 1927)."""
        counts = self.readings[0].counts
        return wilson(counts.accepted[0], counts.reached[0])[0]

    @property
    def verdict(self) -> Verdict:
        marks, mended = {it.mark for it in self.findings}, self.mended
        if "broken" in marks:
            return "broken"
        if "mismatched" in marks:
            return "mismatched"
        if mended:
            weights = not mended.override or set(mended.override) & set(OF_WEIGHTS)
            return "broken" if weights else "misread"
        if self.first is None:
            return "healthy"
        if self.at_least <= (CLEARS if self.low else 1) * self.by_chance:
            return "collapsed"
        if not self.low:
            return "healthy"
        return "unknown" if "suspect" in marks or self.at_least < BY_FAR * self.by_chance else "weak"

    @property
    def failed(self) -> bool:
        """True where a fault was shown, or nothing useful is drafted."""
        return self.verdict in ("broken", "mismatched", "misread", "collapsed")
