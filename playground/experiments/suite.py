"""Drafters over a suite of prompts: tokens per verify pass and speed-up over the standard lane, by category.

Each prompt goes through the standard lane and then through every other lane, so that a machine that slows down slows
them all alike. If it does so several times, the fastest run of each lane counts: whatever else uses the machine makes
a run slower, never faster. All figures come from the traces, through `metrics`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence

from playground import metrics
from playground.backends.base import Backend
from playground.errors import Stopped
from playground.experiments.compare import decode
from playground.experiments.events import Event, Progress, PromptDone
from playground.experiments.questions import Question
from playground.lane import Lane, label
from playground.results import STANDARD, Row, SuiteResult, Summary
from playground.trace import Trace


def run(
    baseline: Lane,
    lanes: Sequence[Lane],
    questions: Sequence[Question],
    backends: Mapping[str, Backend],
    *,
    runs: int = 1,
    stop: threading.Event,
    emit: Callable[[Event], None],
) -> SuiteResult | None:
    """Once `stop` is set it ends within one round and returns what the finished prompts gave; None if none finished.

    Args:
        lanes: those compared with the baseline, each with a label of its own.
        backends: by the name in `Lane.backend`.
        runs: how often each prompt goes through each lane.

    Raises:
        PlaygroundError: a model or server cannot be had, or a prompt does not fit its context.
    """

    def tell(step: Progress) -> None:
        if stop.is_set():
            raise Stopped
        emit(step)

    in_turn = {STANDARD: baseline} | {label(lane): lane for lane in lanes}
    try:
        for lane in in_turn.values():
            backends[lane.backend].load(lane, tell)
    except Stopped:
        return None
    for question in questions:  # before the first run, not in the middle of a long one
        backends[baseline.backend].run(baseline, question.request)
    for lane in in_turn.values():
        backends[lane.backend].warm_up(lane, questions[0].request, stop)
    rows: list[Row] = []
    traces: list[Trace] = []
    for number, question in enumerate(questions):
        done: dict[str, list[Trace]] = {name: [] for name in in_turn}
        for _, (name, lane) in itertools.product(range(runs), in_turn.items()):
            if not stop.is_set():
                done[name].append(decode(backends[lane.backend], lane, question.request, stop, lambda round_: None))
        if stop.is_set():
            break
        new = [_row(number, question.category, name, of_lane, done[STANDARD]) for name, of_lane in done.items()]
        rows += new
        traces += itertools.chain(*zip(*done.values(), strict=True))
        emit(PromptDone(number + 1, len(questions), question.category, {row.lane: row.speedup for row in new[1:]}))
    if not rows:
        return None
    return SuiteResult(
        environment=backends[baseline.backend].describe(baseline),
        request=questions[0].request,
        runs=runs,
        lanes=tuple(lanes),
        rows=tuple(rows),
        summaries=tuple(summarise(rows)),
        traces=tuple(traces),
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Every lane over each category and over all prompts, in the order in which they came."""
    baseline = {row.question: row for row in rows if row.lane == STANDARD}
    categories = list(dict.fromkeys(row.category for row in rows))
    lanes = list(dict.fromkeys(row.lane for row in rows if row.lane != STANDARD))
    summaries = []
    for lane, category in itertools.product(lanes, [*categories, "all"]):
        here = [row for row in rows if row.lane == lane and category in (row.category, "all")]
        beside = [baseline[row.question] for row in here]
        spread = metrics.spread([row.speedup for row in here])
        pooled = metrics.pooled(
            [row.seconds for row in beside],
            [row.tokens for row in beside],
            [row.seconds for row in here],
            [row.tokens for row in here],
        )
        tokens, passes = sum(row.tokens for row in here), sum(row.passes for row in here)
        summaries.append(
            Summary(
                lane=lane,
                category=category,
                prompts=len(here),
                mean_accepted_length=metrics.mean_accepted_length(tokens, passes) or 0.0,
                acceptance_rate=metrics.acceptance_rate(
                    sum(row.accepted for row in here), sum(row.drafted for row in here)
                ),
                speedup=spread.median,
                low=spread.low,
                high=spread.high,
                overall=pooled.speedup,
                interval=pooled.interval,
                identical=sum(row.identical for row in here),
            )
        )
    return summaries


def _row(number: int, category: str, lane: str, runs: Sequence[Trace], baselines: Sequence[Trace]) -> Row:
    fastest, baseline = (min(of_lane, key=_seconds) for of_lane in (runs, baselines))
    m = metrics.measure(fastest)
    return Row(
        question=number,
        category=category,
        lane=lane,
        tokens=m.tokens,
        passes=m.verify_passes,
        seconds=m.total_s,
        drafting_s=m.draft_s,
        accepted=m.accepted,
        drafted=m.drafted,
        speedup=metrics.speedup(baseline.rounds, fastest.rounds) or 0.0,
        identical=all(trace.token_ids == baseline.token_ids for trace in [*runs, *baselines]),
    )


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s
