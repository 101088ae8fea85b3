"""Lanes over a suite of prompts: speed-up over the standard lane, by prompt and by category.

Each question goes through all lanes before the next one begins, so that a machine that slows down slows them all
alike; the order of the lanes is shuffled for each question and run, so that none profits from coming second. A
speed-up is of all tokens over all time, of all runs. All figures come from the traces, through `metrics`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from playground import metrics
from playground.backends.base import Backend
from playground.errors import PlaygroundError, Stopped, check
from playground.experiments.events import LaneSkipped, Progress, PromptDone, Watch
from playground.experiments.journal import Header, Journal
from playground.experiments.questions import Question
from playground.experiments.race import Race
from playground.lane import Lane, Request, label
from playground.metrics import Pooled, Timed
from playground.results import ALL, STANDARD, Failure, QuestionResult, Row, SuiteResult, Summary, names_of, speedups
from playground.trace import Comparison, Environment, Trace


def run(
    baseline: Lane,
    lanes: Sequence[Lane],
    questions: Sequence[Question],
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    runs: int = 1,
    seed: int = 0,
    skip: bool = False,
    record: str = "",
    enough: Callable[[Collection[QuestionResult]], bool] = lambda done: False,
    called: Callable[[int, int], str] = lambda number, total: f"Prompt {number + 1} of {total}",
) -> SuiteResult | None:
    """Runs the questions through all lanes. One that cannot be run becomes a Failure, and the suite continues. Once it
    is stopped it ends within one round and returns the result of the finished questions; None if none finished.

    Args:
        lanes: those compared with the baseline, with distinct labels.
        backends: by the name in `Lane.backend`.
        runs: how often each prompt goes through each lane.
        seed: determines the order of the lanes.
        skip: leave out a lane that cannot be loaded, with a LaneSkipped, as long as one remains besides the baseline.
        called: names a question in progress reports, by its number from 0 and how many there are.
        record: the path of a journal that takes each question as it ends; "" for none. Questions of the same suite that
            it already holds are not run again.
        enough: whether the questions that were run are enough, so that the others are left out.

    Raises:
        PlaygroundError: two lanes have one label; a model or server is not available; the journal is another
            suite's, or cannot be written.
    """
    in_turn, names = {STANDARD: baseline} | {label(lane): lane for lane in lanes}, names_of(lanes)
    check(len(in_turn) == 1 + len(lanes), "Two lanes of the suite have the same settings. Leave one of them out.")
    try:
        _load(in_turn, backends, watch, skip)
        watch.progress(Progress("Warming up"))
    except Stopped:
        return None
    _warm_up(in_turn, questions, backends, watch)
    compared = tuple(lane for name, lane in in_turn.items() if name != STANDARD)
    header = Header(baseline, compared, tuple(questions), runs, seed, _environment(baseline, compared, backends))
    journal = Journal(Path(record)) if record else None
    done = {result.question: result for result in journal.begin(header)} if journal else {}
    left = [number for number in range(len(questions)) if number not in done]
    started = time.monotonic()

    def step(fraction: float, turn: str, lane: str) -> None:
        at, what = (len(done) + fraction) / len(questions), called(len(done), len(questions)) + turn
        alone = not backends[in_turn[lane].backend].by_turns
        watch.progress(Progress(f"{what}: {names[lane]}" if alone else what, at))

    for at, number in enumerate(left):
        if enough(done.values()):
            break
        question = questions[number]
        if at and metrics.unsteady(done[left[at - 1]].traces):
            _warm_up(in_turn, [question], backends, watch)  # this chooses the number of threads again
        try:
            result = _Question(number, question, in_turn, backends, runs, seed, watch, step).run()
        except Stopped:
            break
        if journal:
            journal.append(result)
        done[number] = result
        left_s = (time.monotonic() - started) / (at + 1) * (len(left) - at - 1)
        speedups = {names[row.lane]: row.speedup for row in result.rows if row.turn == 1 and row.lane != STANDARD}
        fraction = len(done) / len(questions)
        watch.emit(PromptDone(len(done), len(questions), question.category, speedups, result, left_s, fraction))
    return suite_result(header, list(done.values()))


def whole(result: SuiteResult | None, watch: Watch) -> SuiteResult:
    """Returns the result of a suite that ran to its end.

    Raises:
        Stopped: it was stopped.
        PlaygroundError: no question could be run.
    """
    if result is None or watch.stopped():
        raise Stopped
    check_ran(result)
    return result


def check_ran(result: SuiteResult) -> None:
    """Checks that a question could be run.

    Raises:
        PlaygroundError: none could; with the reason of the first.
    """
    reasons = [failure.reason for failure in result.failures]
    check(bool(result.rows), f"No prompt could be run. {reasons[0]}" if reasons else "There is no prompt to run.")


def suite_result(header: Header, results: Sequence[QuestionResult]) -> SuiteResult | None:
    """Returns the result of the questions that were finished; None if none was."""
    if not results:
        return None
    results = sorted(results, key=lambda result: result.question)
    rows = [row for result in results for row in result.rows]
    return SuiteResult(
        environment=header.environment,
        request=header.questions[0].request,
        runs=header.runs,
        lanes=header.lanes,
        rows=tuple(rows),
        summaries=tuple(summarise(rows)),
        traces=tuple(trace for result in results for trace in result.traces),
        failures=tuple(result.failure for result in results if result.failure),
        prompts=tuple(question.request.question for question in header.questions),
        seed=header.seed,
        counted="all",
    )


def of_comparison(comparison: Comparison) -> SuiteResult:
    """Returns a comparison as a suite of one prompt, of the passes in which every lane ran to its end.

    Raises:
        PlaygroundError: there is no such pass.
    """
    names = [trace.lane.name for trace in comparison.lanes]
    whole = [
        {trace.lane.name: trace for trace in traces}
        for traces in (comparison.lanes, *comparison.repeats)
        if len(traces) == len(names) and all(trace.finish != "stopped" for trace in traces)
    ]
    check(bool(whole), "A lane of this comparison was stopped. Let all lanes end.")
    runs = {name: [traces[name] for traces in whole] for name in names}
    base, lanes = comparison.standard, tuple(trace.lane for trace in comparison.others)
    of = {STANDARD: runs[comparison.baseline]} | {label(lane): runs[lane.name] for lane in lanes}
    rows = tuple(row(0, 1, "", name, each, of[STANDARD]) for name, each in of.items())
    header = Header(base.lane, lanes, (Question("", base.request),), len(whole), 0, base.environment)
    result = suite_result(header, [QuestionResult(0, rows)])
    assert result
    return result


def _load(lanes: dict[str, Lane], backends: Mapping[str, Backend], watch: Watch, skip: bool) -> None:
    """Loads every lane. With `skip`, lanes that cannot be loaded are removed, as long as one is compared."""
    for name, lane in list(lanes.items()):
        try:
            backends[lane.backend].load(lane, watch.progress)
        except PlaygroundError as error:
            if not skip or name == STANDARD or len(lanes) == 2:
                raise
            watch.emit(LaneSkipped(lane, str(error), list(lanes).index(name)))
            del lanes[name]


def _environment(baseline: Lane, lanes: Sequence[Lane], backends: Mapping[str, Backend]) -> Environment:
    """Returns the baseline's environment, with the shapes of the drafters of all lanes by their labels."""
    found = backends[baseline.backend].describe(baseline)
    drafters = {label(lane): backends[lane.backend].describe(lane).shapes.get("drafter") for lane in lanes}
    return replace(found, shapes=found.shapes | {name: it for name, it in drafters.items() if it})


def _warm_up(
    lanes: Mapping[str, Lane], questions: Sequence[Question], backends: Mapping[str, Backend], watch: Watch
) -> None:
    """Warms every lane up with the first question that it takes."""
    requests: dict[str, Request] = {}
    for question in questions:  # some repeat an earlier question with another seed
        requests.setdefault(question.request.question, question.request)
    for lane in lanes.values():
        for request in requests.values():
            if watch.stopped():
                return
            try:
                backends[lane.backend].warm_up(lane, request, watch.stopped)
                break
            except PlaygroundError:
                continue  # its own turn will say why


@dataclass(frozen=True)
class _Question:
    """One question through all lanes, `runs` times a turn."""

    number: int
    question: Question
    lanes: Mapping[str, Lane]
    backends: Mapping[str, Backend]
    runs: int
    seed: int
    watch: Watch
    step: Callable[[float, str, str], None]

    def run(self) -> QuestionResult:
        """Runs the question.

        Raises:
            Stopped: before it ended.
        """
        rows: list[Row] = []
        traces: list[Trace] = []
        request, category = self.question.request, self.question.category
        prompts = (request.prompt, *self.question.more)
        rng = random.Random(f"{self.seed} {self.number}")
        for turn in range(1, len(prompts) + 1):
            where = f", turn {turn} of {len(prompts)}" if len(prompts) > 1 else ""
            done = self._answered(request, where, (turn - 1) / len(prompts), 1 / len(prompts), rng)
            if isinstance(done, Failure):
                return QuestionResult(self.number, failure=done)
            for name, of_lane in done.items():
                base = done[STANDARD]
                rows.append(row(self.number, turn, category, name, of_lane, base, self.question.conversation))
                traces += of_lane
            if turn < len(prompts):
                request = request.next_turn(metrics.answered(done[STANDARD][0]), prompts[turn])
        return QuestionResult(self.number, tuple(rows), traces=tuple(traces))

    def _answered(
        self, request: Request, where: str, at: float, share: float, rng: random.Random
    ) -> dict[str, list[Trace]] | Failure:
        """Runs one turn in all lanes; returns the traces of each. `where`: which turn, for progress reports. `at`,
        `share`: the share of the question's work that is done, and that the turn is."""
        done: dict[str, list[Trace]] = {name: [] for name in self.lanes}
        failing, ended = STANDARD, 0

        def name_of(lane: Lane) -> str:
            return next(name for name, each in self.lanes.items() if each == lane)

        def start(lane: Lane) -> None:
            self.step(at + share * ended / (self.runs * len(self.lanes)), where, name_of(lane))

        def end(trace: Trace) -> None:
            nonlocal ended
            ended += 1

        def fail(lane: Lane, error: Exception) -> None:
            nonlocal failing
            failing = name_of(lane)
            raise error

        race = Race(self.backends, request, self.watch, started=start, ended=end, failed=fail)
        try:
            # The first prefill of a length is slower, and must not fall to one lane alone.
            baseline = self.lanes[STANDARD]
            self.backends[baseline.backend].warm_up(baseline, request, self.watch.stopped)
            for _ in range(self.runs):
                order = rng.sample(list(self.lanes), len(self.lanes))
                found = race.run([self.lanes[name] for name in order])
                self.watch.check()
                for name, trace in zip(order, found, strict=True):
                    done[name].append(cast(Trace, trace))  # none failed or was not reached, which raises
        except (PlaygroundError, RuntimeError) as error:  # torch raises RuntimeError, also out of memory
            reason = str(error) if isinstance(error, PlaygroundError) else f"The model failed: {error}"
            return Failure(self.number, self.question.category, failing, reason)
        return done


COUNTS = ("passes", "accepted", "drafted")


def row(
    question: int,
    turn: int,
    category: str,
    lane: str,
    runs: Sequence[Trace],
    baselines: Sequence[Trace],
    conversation: int | None = None,
) -> Row:
    """Computes the row of one prompt in one lane. `runs[j]` and `baselines[j]` belong together."""
    median, runs_s = sorted(runs, key=_seconds)[(len(runs) - 1) // 2], tuple(map(_seconds, runs))
    m, gaps = metrics.measure(median), metrics.gaps(median.rounds)
    ratio = metrics.pooled([_timed(baselines)], [_timed(runs)])
    return Row(
        question=question,
        category=category,
        lane=lane,
        tokens=_tokens(median),
        passes=m.verify_passes,
        seconds=statistics.median(runs_s),
        drafting_s=m.draft_s,
        accepted=m.accepted,
        drafted=m.drafted,
        speedup=ratio.speedup,
        identical=all(metrics.first_difference(baselines[0], trace) is None for trace in [*runs, *baselines]),
        turn=turn,
        ttft_s=m.ttft_s,
        p50_s=gaps.p50_s if gaps else None,
        p95_s=gaps.p95_s if gaps else None,
        runs_s=runs_s,
        runs_tokens=tuple(map(_tokens, runs)),
        interval=None if lane == STANDARD else ratio.interval,
        positions=tuple(metrics.acceptance_by_position(median.rounds)),
        segments=tuple(metrics.by_segment(median)),
        reused=median.reused.tokens if median.reused else None,
        both_rules=metrics.both_rules(median.rounds),
        past_context=next((it.past_context for it in median.rounds if it.past_context is not None), None),
        conversation=conversation,
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Summarises every lane over each category and over all prompts, in the order of appearance, the standard lane
    first. The intervals of a category hold simultaneously for all its lanes, like those of `results.rank`."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(f"{ALL} (category)" if row.category == ALL else row.category, []).append(row)
    lanes = list(dict.fromkeys(row.lane for row in rows))
    groups = [(category, here, speedups(here)) for category, here in [*of.items(), (ALL, rows)]]
    return [
        _summary(lane, category, [row for row in here if row.lane == lane], found[lane])
        for lane in lanes
        for category, here, found in groups
    ]


def _summary(lane: str, category: str, here: Sequence[Row], pooled: Pooled) -> Summary:
    """Summarises a lane. `here`: its rows in the category."""
    low, median, high = metrics.quartiles([row.speedup for row in here])
    passes, accepted, drafted = (_total(getattr(row, name) for row in here) for name in COUNTS)
    return Summary(
        lane=lane,
        category=category,
        prompts=len(here),
        mean_accepted_length=metrics.mean_accepted_length(sum(row.tokens for row in here), passes),
        acceptance_rate=metrics.acceptance_rate(accepted, drafted),
        speedup=median,
        low=low,
        high=high,
        overall=pooled.speedup,
        interval=pooled.interval,
        identical=sum(row.identical for row in here),
        macro=metrics.macro([row.speedup for row in here]),
        over=pooled.over,
        tokens_per_s=sum(sum(row.timed.tokens) for row in here) / sum(sum(row.timed.seconds) for row in here),
        total_s=statistics.median(row.seconds for row in here),
        ttft_s=_median(row.ttft_s for row in here),
        p50_s=_median(row.p50_s for row in here),
        p95_s=_median(row.p95_s for row in here),
        positions=tuple(metrics.add_positions(row.positions for row in here)),
        segments=tuple(metrics.add_segments(row.segments for row in here)),
        both_rules=metrics.add_both_rules(row.both_rules for row in here),
    )


def _timed(runs: Sequence[Trace]) -> Timed:
    return Timed(tuple(map(_tokens, runs)), tuple(map(_seconds, runs)))


def _tokens(trace: Trace) -> int:
    """Returns the number of tokens of an answer.

    Raises:
        PlaygroundError: the server does not report it.
    """
    tokens = metrics.measure(trace).tokens
    if tokens is None:
        raise PlaygroundError(
            f"{trace.lane.backend} does not say how many tokens its answer has, so there is no time per token to "
            "compare. It has to send `usage` with a streamed answer (`stream_options.include_usage`)."
        )
    return tokens


def _total(counts: Iterable[int | None]) -> int | None:
    """Returns the sum; None if a count is unknown."""
    found = list(counts)
    return None if None in found else sum(filter(None, found))


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
