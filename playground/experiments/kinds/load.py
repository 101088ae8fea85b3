"""The Load experiment: one or two servers at several numbers of users, or rates, to see where speculation stops paying.

Each level goes through one lane after the other, so that the lanes do not share the machine; which comes first
alternates. Both lanes of a level get the same prompts in the same order, and in open loop at the same times. Every
request ends as a row: answered, or with its error. A level that was stopped in the middle starts again: half of it
would not be the same load.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from playground import metrics
from playground.backends.base import Backend
from playground.backends.connect import Servers, counts_of
from playground.backends.http import KEY, Http
from playground.backends.server import ServerBackend
from playground.errors import PlaygroundError, Stopped, check
from playground.experiments import journal
from playground.experiments.events import LevelDone, ResultReady, Watch
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import AnswerOptions, Decoders, PromptOptions, TracesOptions, option
from playground.experiments.questions import Question
from playground.experiments.race import decode
from playground.lane import Lane
from playground.metrics.load import Answered, Level, Limits, Reading, Window, gains, points, window
from playground.progress import Progress
from playground.results import LoadResult
from playground.trace import Environment, Round

MOST = 256  # requests in flight in open loop; a further one waits, which its latency includes
WARM_UP_TOKENS = 8
TELL_S = 0.5  # between two polls of how many requests have ended
_appending = threading.Lock()


class LoadOptions(TracesOptions, AnswerOptions, PromptOptions):
    baseline_server: str = option("", "Standard server", "address of one with the same model, without speculation")
    server: str = option("", "Assisted server", "address of the server to measure, such as http://127.0.0.1:8082")
    model: str = option("", "Model", "the model's name, if a server has several")
    concurrency: tuple[int, ...] = option(
        (1, 2, 4, 8), "Users", "users at the same time (closed loop)", low=1, high=MOST
    )
    rate: tuple[float, ...] = option(
        (), "Requests a second", "rates of random arrivals, in place of users (open loop)", low=0.001, high=MOST,
        one=1.0,
    )  # fmt: skip
    requests: int = option(
        16, "Requests", "requests of each level, at least one a user", low=1, high=100_000, folded=True
    )
    ttft_limit: float = option(1.0, "TTFT limit", "seconds to the first token, for goodput", low=0.001, folded=True)
    tpot_limit: float = option(0.1, "TPOT limit", "seconds per token after it, for goodput", low=0.001, folded=True)
    arrivals_seed: int = option(0, "Arrivals", "seed of the arrival times", folded=True)


@dataclass(frozen=True)
class Plan:
    """The requests of a load test. `requests`: how many each level sends to each lane; in closed loop at least one for
    each user. `seed`: determines the arrival times in open loop."""

    levels: tuple[Level, ...]
    requests: int
    seed: int = 0

    def count(self, level: Level) -> int:
        """Returns how many requests a level sends to each lane."""
        return max(self.requests, level.concurrency or 0)


@dataclass(frozen=True)
class Header:
    """The first line of a journal: the plan. `environments`: of the lanes, in their order."""

    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    requests: int
    seed: int
    environments: tuple[Environment, ...]


class Journal(journal.Journal):
    """A journal with a line for each request of a level that has ended. A resumed test may add levels."""

    kind: ClassVar[str] = "load-record"
    what: ClassVar[str] = "load test"
    header: ClassVar[type] = Header
    row: ClassVar[type] = Answered

    @staticmethod
    def comparable(header: Any) -> Any:
        return replace(header, environments=tuple(map(journal.alike, header.environments)))


@dataclass(frozen=True)
class Load:
    """The work of a Load experiment. `limits`: latency limits for goodput. `traces`: a file that takes the trace of
    each answer, one per line; "" for none."""

    servers: Servers
    questions: tuple[Question, ...]
    plan: Plan
    limits: Limits
    traces: str = ""
    record: str = ""

    @property
    def pair(self) -> None:
        """None: servers decode."""

    @property
    def lanes(self) -> Sequence[Lane]:
        return ()

    @property
    def tokens(self) -> int:
        requests = sum(map(self.plan.count, self.plan.levels))
        most = max(question.request.max_new_tokens for question in self.questions)
        return len(self.servers.urls) * requests * most

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        """Runs all levels. Once it is stopped no request is sent, those in flight end within one round and are left
        out, and the result has the levels that were finished.

        Raises:
            PlaygroundError: a server is not available, a prompt does not fit, or the journal is another test's.
        """
        lanes, servers, _ = self.servers.with_local([])
        try:
            environments = _prepared(lanes, self.questions, servers, watch)
            header = Header(tuple(lanes), self.questions, self.plan.requests, self.plan.seed, environments)
            rows = self._rows(header, servers, watch)
        except Stopped:
            return
        finally:
            for server in servers.values():
                server.close()
        if result := load_result(header, rows, self.plan.levels, self.limits):
            watch.emit(ResultReady(result))

    def so_far(self) -> LoadResult | None:
        if not Path(self.record).is_file():
            return None
        header, rows, _ = journal.read_as(Path(self.record), Journal)
        return load_result(header, rows, self.plan.levels, self.limits)

    def _rows(self, header: Header, servers: Mapping[str, ServerBackend], watch: Watch) -> list[Answered]:
        """Runs the levels and returns the rows of those that were finished. Levels in the journal are not run again."""
        record = Journal(Path(self.record)) if self.record else None
        rows: list[Answered] = [*record.begin(header)] if record else []
        lanes, plan = header.lanes, self.plan
        turns = [(it, lane) for i, it in enumerate(plan.levels) for lane in (lanes if i % 2 == 0 else lanes[::-1])]
        done = {(row.level, row.lane) for row in rows}
        left = [(level, lane) for level, lane in turns if (level, lane.name) not in done]
        begun, spent = time.monotonic(), 0.0
        try:
            for at, (level, lane) in enumerate(left, start=1):
                new = _Turn(self, level, lane, servers[lane.backend], watch).run()
                if record:
                    for row in new:
                        record.append(row)
                rows += new
                spent += _weight(plan, level)
                ahead = sum(_weight(plan, level) for level, _ in left[at:])
                number = len(turns) - len(left) + at
                left_s = (time.monotonic() - begun) / spent * ahead
                watch.emit(LevelDone(number, len(turns), tuple(points(rows, self.limits)), left_s))
        except Stopped:
            pass
        return rows


def load_result(header: Header, rows: Sequence[Answered], levels: Sequence[Level], limits: Limits) -> LoadResult | None:
    """Returns the result of the levels that were finished; None if none was."""
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
    """Tokenises every prompt before the first level, so that one that does not fit cannot end a long run. Returns the
    environments of the lanes."""
    for lane in lanes:
        backend = backends[lane.backend]
        backend.details = False
        backend.load(lane, watch.progress)
        for question in questions:
            backend.run(lane, question.request)
    return tuple(backends[lane.backend].describe(lane) for lane in lanes)


def _weight(plan: Plan, level: Level) -> float:
    """Estimates how long a level takes, relative to the others of the test."""
    return plan.count(level) / (level.rate or 1)


@dataclass(frozen=True)
class _Turn:
    """One level through one lane, after a warm-up with as many concurrent requests."""

    load: Load
    level: Level
    lane: Lane
    backend: ServerBackend
    watch: Watch

    def run(self) -> list[Answered]:
        count = self.load.plan.count(self.level)
        users = self.level.concurrency or min(MOST, count)
        where = f"{self.lane.name} at {self.level.words}"
        self.watch.progress(Progress(f"{where}: warming up"))
        with ThreadPoolExecutor(users) as pool:
            list(pool.map(self._warm_up, range(users)))
            begun = time.monotonic()
            arrivals = islice(self._arrivals(), count)
            requests = [pool.submit(self._ask, number, begun, at) for number, at in enumerate(arrivals)]
            left = set(requests)
            while left:
                left = wait(left, timeout=TELL_S).not_done
                self.watch.progress(Progress(f"{where}: {count - len(left)} of {count} requests"))
        return [request.result() for request in requests]

    def _arrivals(self) -> Iterator[float | None]:
        """Yields the seconds at which requests arrive, a Poisson process; in closed loop None, which means as soon as a
        user is free."""
        draw, at = random.Random(self.load.plan.seed), 0.0
        while True:
            yield at if self.level.rate else None
            at += draw.expovariate(self.level.rate or 1)

    def _warm_up(self, number: int) -> None:
        request = self.load.questions[number % len(self.load.questions)].request
        short = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
        if not self.watch.stopped():
            decode(self.backend, self.lane, short, self.watch)

    def _ask(self, number: int, begun: float, arrival: float | None) -> Answered:
        if arrival is not None:
            self.watch.wait(max(0.0, begun + arrival - time.monotonic()))
        sent = time.monotonic() - begun
        late = 0.0 if arrival is None else sent - arrival
        question = number % len(self.load.questions)
        row = Answered(self.level, self.lane.name, number, question, sent - late, ())
        if self.watch.stopped():
            return row
        ends: dict[float, int] = {}  # tokens by their arrival time

        def count(round_: Round) -> None:
            ends[round_.end_s] = ends.get(round_.end_s, 0) + len(round_.tokens)

        error = ""
        try:
            whole = decode(self.backend, self.lane, self.load.questions[question].request, self.watch, count)
            if self.load.traces:
                with _appending:
                    journal.append_traces(self.load.traces, [whole])
            m = metrics.measure(whole)
            known = whole.totals or not whole.environment.notes
            row = replace(row, drafted=m.drafted if known else None, accepted=m.accepted if known else None)
            if whole.totals:
                row = replace(row, counted=m.tokens)
                error = "" if m.tokens else "The server does not say how many tokens the answer has."
        except PlaygroundError as problem:
            error = str(problem)
        if not error and not ends:
            error = "The answer has no tokens."
        return replace(row, arrivals=tuple((late + end, tokens) for end, tokens in ends.items()), error=error)


def _work(options: LoadOptions, on: Decoders | None) -> tuple[Load, str]:
    name, questions = options.read()
    server = options.server.strip()
    check(bool(server), "Give the address of the server to measure.")
    levels = [Level(rate=rate) for rate in options.rate] or [Level(concurrency=n) for n in options.concurrency]
    check(bool(levels), "Give numbers of users, or of requests a second.")
    work = Load(
        Servers(server, options.baseline_server.strip(), options.model.strip()),
        questions,
        Plan(tuple(dict.fromkeys(levels)), options.requests, options.arrivals_seed),
        Limits(options.ttft_limit, options.tpot_limit),
        traces=options.traces_file,
    )
    *first, last = levels
    at = ", ".join([*map(str, first), last.words])
    return work, f"{name} at {at}, {' and '.join(url.partition('://')[2] or url for url in work.servers.urls)}"


KIND = Kind(
    name="load",
    label="Load test",
    does="Sends the prompts of a suite to one server or two, at several levels of load: where does speculation stop "
    "paying?",
    intro="Speculation pays while a server has few users, and can slow it down at high concurrency. A load test sends "
    "the prompts of a suite to two servers, level by level, to find where that turns.",
    hint="Start both servers on the Serve page, then press Run. Give llama-server as many --slots as users.",
    exits="0: all requests were answered; 1: some failed",
    options=LoadOptions,
    work=_work,
    experiment=Load,
    pair=False,
    room="Serve",
)


def watched(url: str, every_s: float, watch: Watch) -> Iterator[Window]:
    """Monitors a server that has traffic through its /metrics, without sending a request to its model. Yields a window
    every `every_s` seconds until it is stopped. A restart of the server begins a new window.

    Raises:
        PlaygroundError: nothing answers; and see `counts_of` (llama-server shows counters if started with --metrics).
    """
    http = Http(url, os.environ.get(KEY, ""), idle_s=max(5.0, every_s))
    begun = time.monotonic()
    try:
        before = _read(http, begun)
        while not watch.wait(every_s):
            after = _read(http, begun)
            if found := window(before, after):
                yield found
            before = after
    finally:
        http.close()


def _read(http: Http, begun: float) -> Reading:
    text = http.text("/metrics")
    return Reading(time.monotonic() - begun, counts_of(text))
