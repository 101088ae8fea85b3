"""Load: the prompts of a suite at several concurrencies or rates, through the lanes of servers.

Each level goes through one lane after the other, so that the lanes do not share the machine; which comes first
alternates. Both lanes of a level get the same prompts in the same order, and in open loop at the same moments. Every
request ends as a row: answered, or with its error. A level that was stopped in the middle begins anew: half of it
would not be the same load.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice

from playground import metrics
from playground.backends.server import ServerBackend
from playground.errors import PlaygroundError, Stopped, check
from playground.experiments.compare import decode
from playground.experiments.events import LevelDone
from playground.experiments.load_record import Header, Record
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.lane import Lane
from playground.metrics.load import Answered, Level, Limits, gains, points
from playground.progress import Progress
from playground.results import LoadResult
from playground.trace import Environment, Round, Trace

MOST = 256  # requests in flight in open loop; the next one then waits, which its latency includes
WARM_UP_TOKENS = 8
TELL_S = 0.5  # between two looks at how many requests have ended


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
    limits: Limits,
    watch: Watch,
    *,
    record: Record | None = None,
    trace: Callable[[Trace], None] = lambda trace: None,
) -> LoadResult | None:
    """Once it is stopped no request is sent, those in flight end within one round and are left out, and the result has
    the levels that were finished; None if none was.

    Args:
        lanes: the baseline first.
        backends: by the name in `Lane.backend`. They send nothing beside the load.
        limits: of a good request.
        record: takes the rows of each level as it ends. What it holds of the same test is not run again.
        trace: is given the trace of each answer, by several threads.

    Raises:
        PlaygroundError: a server cannot be had, a prompt does not fit, or the record is another's.
    """
    check(bool(questions) and bool(plan.levels), "A load test needs a prompt and a level.")
    try:
        environments = _prepared(lanes, questions, backends, watch)
        header = Header(tuple(lanes), tuple(questions), plan.requests, plan.seed, environments)
        rows = [*record.begin(header)] if record else []
    except Stopped:
        return None
    turns = [(level, lane) for i, level in enumerate(plan.levels) for lane in (lanes if i % 2 == 0 else lanes[::-1])]
    done = {(row.level, row.lane) for row in rows}
    left = [(level, lane) for level, lane in turns if (level, lane.name) not in done]
    begun, spent = time.monotonic(), 0.0
    try:
        for at, (level, lane) in enumerate(left, start=1):
            turn = _Turn(level, lane, backends[lane.backend], questions, plan.count(level), plan.seed, watch, trace)
            new = turn.run()
            if record:
                record.extend(new)
            rows += new
            spent += _weight(plan, level)
            ahead = sum(_weight(plan, level) for level, _ in left[at:])
            number = len(turns) - len(left) + at
            left_s = (time.monotonic() - begun) / spent * ahead
            watch.emit(LevelDone(number, len(turns), tuple(points(rows, limits)), left_s))
    except Stopped:
        pass
    return load_result(header, rows, plan.levels, limits)


def load_result(header: Header, rows: Sequence[Answered], levels: Sequence[Level], limits: Limits) -> LoadResult | None:
    """The result of the levels that were finished; None if none was."""
    if not rows:
        return None
    return LoadResult(
        environments=header.environments,
        request=header.questions[0].request,
        lanes=header.lanes,
        levels=tuple(levels),
        requests=header.requests,
        seed=header.seed,
        limits=limits,
        rows=tuple(rows),
        points=tuple(points(rows, limits)),
        gains=tuple(gains(rows, header.lanes[0].name)),
    )


def _prepared(
    lanes: Sequence[Lane], questions: Sequence[Question], backends: Mapping[str, ServerBackend], watch: Watch
) -> tuple[Environment, ...]:
    """Every prompt is tokenised before the first level, so that one that does not fit ends no long run."""
    for lane in lanes:
        backend = backends[lane.backend]
        backend.details = False
        backend.load(lane, watch.progress)
        for question in questions:
            backend.run(lane, question.request)
    return tuple(backends[lane.backend].describe(lane) for lane in lanes)


def _weight(plan: Plan, level: Level) -> float:
    """How long a level takes, beside others of the test."""
    return plan.count(level) / (level.rate or 1)


@dataclass(frozen=True)
class _Turn:
    """One level through one lane, after a warm-up with as many requests at the same time."""

    level: Level
    lane: Lane
    backend: ServerBackend
    questions: Sequence[Question]
    count: int
    seed: int
    watch: Watch
    trace: Callable[[Trace], None]

    def run(self) -> list[Answered]:
        users = self.level.concurrency or min(MOST, self.count)
        where = f"{self.lane.name} at {self.level.words}"
        self.watch.progress(Progress(f"{where}: warming up"))
        with ThreadPoolExecutor(users) as pool:
            list(pool.map(self._warm_up, range(users)))
            begun = time.monotonic()
            moments = islice(self._moments(), self.count)
            requests = [pool.submit(self._ask, number, begun, due) for number, due in enumerate(moments)]
            left = set(requests)
            while left:
                left = wait(left, timeout=TELL_S).not_done
                self.watch.progress(Progress(f"{where}: {self.count - len(left)} of {self.count} requests"))
        return [request.result() for request in requests]

    def _moments(self) -> Iterator[float | None]:
        """Seconds at which requests are due: a Poisson process. None: as soon as a user is free."""
        draw, at = random.Random(self.seed), 0.0
        while True:
            yield at if self.level.rate else None
            at += draw.expovariate(self.level.rate or 1)

    def _question(self, number: int) -> int:
        return number % len(self.questions)

    def _warm_up(self, number: int) -> None:
        request = self.questions[self._question(number)].request
        short = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
        if not self.watch.stopped():
            decode(self.backend, self.lane, short, self.watch)

    def _ask(self, number: int, begun: float, due: float | None) -> Answered:
        if due is not None:
            self.watch.wait(max(0.0, begun + due - time.monotonic()))
        sent = time.monotonic() - begun
        late = 0.0 if due is None else sent - due
        question = self._question(number)
        row = Answered(self.level, self.lane.name, number, question, sent - late, ())
        if self.watch.stopped():
            return row
        ends: dict[float, int] = {}  # tokens by when they arrived

        def count(round_: Round) -> None:
            ends[round_.end_s] = ends.get(round_.end_s, 0) + len(round_.tokens)

        error = ""
        try:
            whole = decode(self.backend, self.lane, self.questions[question].request, self.watch, count)
            self.trace(whole)
            m = metrics.measure(whole)
            known = not whole.environment.notes
            row = replace(row, drafted=m.drafted if known else None, accepted=m.accepted if known else None)
        except PlaygroundError as problem:
            error = str(problem)
        if not error and not ends:
            error = "The answer has no tokens."
        return replace(row, arrivals=tuple((late + end, tokens) for end, tokens in ends.items()), error=error)
