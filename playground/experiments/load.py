"""Load: the prompts of a suite at several concurrencies or rates, through the lanes of servers.

Each level goes through one lane after the other, so that the lanes do not share the machine; which comes first
alternates. Both lanes of a level get the same prompts in the same order, and in open loop at the same moments. Every
request ends as a row: answered, or with its error.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from playground import metrics
from playground.backends.server import ServerBackend
from playground.errors import PlaygroundError, Stopped, check
from playground.experiments.compare import decode
from playground.experiments.load_record import Header, Record
from playground.experiments.questions import Question
from playground.lane import Lane
from playground.metrics.load import Answered, Level
from playground.progress import Progress
from playground.trace import Trace

MOST = 256  # requests in flight in open loop; the next one then waits, which its latency includes
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Plan:
    """What is sent. `requests`: of each level to each lane; in closed loop at least one for each user. `seed`: of the
    moments in open loop."""

    levels: tuple[Level, ...]
    requests: int
    seed: int = 0

    def count(self, level: Level) -> int:
        return max(self.requests, level.concurrency or 0)


def run(
    lanes: Sequence[Lane],
    questions: Sequence[Question],
    backends: Mapping[str, ServerBackend],
    plan: Plan,
    *,
    record: Record | None = None,
    stop: threading.Event,
    emit: Callable[[Progress], None],
    trace: Callable[[Trace], None] = lambda trace: None,
) -> list[Answered]:
    """The rows of all requests. Once `stop` is set no request is sent, those in flight end within one round and are
    left out, and the levels that were finished are returned.

    Args:
        lanes: the baseline first.
        backends: by the name in `Lane.backend`. They send nothing beside the load.
        record: takes the rows of each level as it ends. What it holds of the same plan is not run again.
        trace: is given the trace of each answer.

    Raises:
        PlaygroundError: a server cannot be had, a prompt does not fit, or the record is another's.
    """
    check(bool(questions) and bool(plan.levels), "A load test needs a prompt and a level.")
    for backend in backends.values():
        backend.details = False

    def tell(step: Progress) -> None:
        if stop.is_set():
            raise Stopped
        emit(step)

    rows: list[Answered] = []
    try:
        for lane in lanes:
            backends[lane.backend].load(lane, tell)
            for question in questions:  # before the first level, not in the middle of a long run
                backends[lane.backend].run(lane, question.request)
        if record:
            environments = tuple(backends[lane.backend].describe(lane) for lane in lanes)
            rows += record.begin(Header(tuple(lanes), tuple(questions), plan.requests, plan.seed, environments))
        done = {(row.level, row.lane) for row in rows}
        for i, level in enumerate(plan.levels):
            for j, lane in enumerate(lanes if i % 2 == 0 else reversed(lanes)):
                if (level, lane.name) in done:
                    continue
                fraction = (i * len(lanes) + j) / (len(plan.levels) * len(lanes))
                tell(Progress(f"{lane.name} at {level}: {plan.count(level)} requests", fraction))
                new = _level(lane, level, questions, backends[lane.backend], plan, stop, trace)
                if stop.is_set():
                    return rows
                rows += new
                if record:
                    record.extend(new)
    except Stopped:
        pass
    return rows


def _level(
    lane: Lane,
    level: Level,
    questions: Sequence[Question],
    backend: ServerBackend,
    plan: Plan,
    stop: threading.Event,
    trace: Callable[[Trace], None],
) -> list[Answered]:
    """One level through one lane, after a warm-up with as many requests at the same time."""
    users = level.concurrency or min(MOST, plan.count(level))
    order = itertools.cycle(range(len(questions)))
    sent = [(number, next(order)) for number in range(plan.count(level))]

    def ask(job: tuple[int, int], due: float | None = None) -> Answered:
        number, question = job
        return _asked(lane, level, number, question, questions[question], backend, begun, due, stop, trace)

    with ThreadPoolExecutor(users) as pool:
        warm_up = [questions[question] for _, question in sent[:users]]
        list(pool.map(lambda question: _warm(lane, question, backend, stop), warm_up))
        begun = time.monotonic()
        if level.concurrency:
            return list(pool.map(ask, sent))
        futures = []
        for job, due in zip(sent, _moments(level.rate or 0.0, plan.seed), strict=False):
            stop.wait(max(0.0, begun + due - time.monotonic()))
            futures.append(pool.submit(ask, job, due))
        return [future.result() for future in futures]


def _moments(rate: float, seed: int) -> Iterator[float]:
    """Seconds at which requests are due: a Poisson process."""
    draw, at = random.Random(seed), 0.0
    while True:
        yield at
        at += draw.expovariate(rate)


def _warm(lane: Lane, question: Question, backend: ServerBackend, stop: threading.Event) -> None:
    short = replace(question.request, max_new_tokens=min(WARM_UP_TOKENS, question.request.max_new_tokens))
    if not stop.is_set():
        decode(backend, lane, short, stop, lambda round_: None)


def _asked(
    lane: Lane,
    level: Level,
    number: int,
    at: int,
    question: Question,
    backend: ServerBackend,
    begun: float,
    due: float | None,
    stop: threading.Event,
    trace: Callable[[Trace], None],
) -> Answered:
    sent = time.monotonic() - begun
    late = 0.0 if due is None else sent - due
    ends: dict[float, int] = {}  # tokens by when they arrived
    row = Answered(level, lane.name, number, at, sent - late, ())
    if stop.is_set():
        return row
    error = ""
    try:
        whole = decode(
            backend, lane, question.request, stop, lambda round_: _count(ends, round_.end_s, len(round_.tokens))
        )
        trace(whole)
        m = metrics.measure(whole)
        known = not whole.environment.notes
        row = replace(row, drafted=m.drafted if known else None, accepted=m.accepted if known else None)
    except PlaygroundError as problem:
        error = str(problem)
    if not error and not ends:
        error = "The answer has no tokens."
    return replace(row, arrivals=tuple((late + end, tokens) for end, tokens in ends.items()), error=error)


def _count(ends: dict[float, int], end_s: float, tokens: int) -> None:
    ends[end_s] = ends.get(end_s, 0) + tokens
