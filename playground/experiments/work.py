"""What is to be run, as data: it can be estimated before it runs, and pickled into another process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from playground.backends.base import Backend
from playground.backends.connect import NONE, Servers, connected
from playground.experiments import compare, load, load_record, lossless, recommend, suite, sweep
from playground.experiments.events import Finished, Progress, ResultReady
from playground.experiments.questions import Question
from playground.experiments.record import Record, read
from playground.experiments.watch import Watch
from playground.export import trace_to_json
from playground.lane import Lane, Request, standard_lane
from playground.metrics.load import Limits
from playground.presets import Pair
from playground.results import Axis, LoadResult, Result, SuiteResult, SweepResult
from playground.trace import Comparison, Trace


class Work(Protocol):
    """Runs lanes when it is called, and emits events, of which `Finished` holds the result."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """Those that are known before it runs; a server tells its own."""

    @property
    def tokens(self) -> int:
        """The most new tokens that all lanes together decode."""

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None: ...


class Experiment(Work, Protocol):
    """Work that takes long: a dataclass that JSON holds, whose rows are on record as they come, and which emits
    `ResultReady` at the end, also of what was finished when it was stopped. `record`: its path; "" for none."""

    @property
    def pair(self) -> Pair | None:
        """None where servers alone decode: then it is called without backends."""

    @property
    def record(self) -> str: ...

    def so_far(self) -> Result | None:
        """What its record holds; None without a finished question."""


@dataclass(frozen=True)
class Compare:
    """As `compare.run`, of `lanes` of this process, with the lanes of `servers` beside them."""

    lanes: Sequence[Lane]
    request: Request
    skip: bool = False
    servers: Servers = NONE

    @property
    def count(self) -> int:
        """How many lanes will run."""
        return len(self.lanes) + len(self.servers.urls)

    @property
    def tokens(self) -> int:
        return self.count * self.request.max_new_tokens

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        for url in self.servers.urls:
            watch.emit(Progress(f"Asking the server at {url}"))
        lanes, servers, baseline = self.servers.beside(self.lanes)
        compare.run(lanes, self.request, {**backends, **servers}, watch, baseline=baseline, skip=self.skip)


@dataclass(frozen=True)
class Repeat:
    """As `compare.repeat`, of a comparison that was run here: its servers are asked again."""

    comparison: Comparison
    times: int

    @property
    def lanes(self) -> Sequence[Lane]:
        return [trace.lane for trace in self.comparison.lanes]

    @property
    def tokens(self) -> int:
        return self.times * len(self.lanes) * self.comparison.standard.request.max_new_tokens

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        every = {**backends, **connected(self.lanes)}
        watch.emit(Finished(compare.repeat(self.comparison, every, self.times, watch)))


@dataclass(frozen=True)
class Suite:
    """As `suite.run`, of lanes of one pair; or of servers, with a `baseline` and without a pair."""

    pair: Pair | None
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    skip: bool = False
    record: str = ""
    baseline: Lane | None = None

    @property
    def tokens(self) -> int:
        return self.runs * (1 + len(self.lanes)) * _tokens(self.questions)

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        baseline = _baseline(self.pair, self.baseline)
        every = {**backends, **connected([baseline, *self.lanes])}
        result = suite.run(
            baseline, self.lanes, self.questions, every, watch,
            runs=self.runs, seed=self.seed, skip=self.skip, record=_record(self.record),
        )  # fmt: skip
        if result:
            watch.emit(ResultReady(result))

    def so_far(self) -> SuiteResult | None:
        return _on_record(self.record)


@dataclass(frozen=True)
class Sweep:
    """As `sweep.run`, of a lane of one pair; or of a server, with a `baseline` and without a pair."""

    pair: Pair | None
    lane: Lane
    axis: Axis
    values: tuple[float, ...]
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def lanes(self) -> Sequence[Lane]:
        return sweep.lanes_of(self.lane, self.axis, self.values)

    @property
    def tokens(self) -> int:
        asked = 1 if self.axis in sweep.OF_LANES else len(self.values)
        return self.runs * asked * (1 + len(self.lanes)) * _tokens(self.questions)

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        baseline = _baseline(self.pair, self.baseline)
        every = {**backends, **connected([baseline, self.lane])}
        result = sweep.run(
            baseline, self.lane, self.axis, self.values, self.questions, every, watch,
            runs=self.runs, seed=self.seed, record=_record(self.record),
        )  # fmt: skip
        if result:
            watch.emit(ResultReady(result))

    def so_far(self) -> SweepResult | None:
        result = _on_record(self.record)
        return sweep.sweep_result(self.axis, self.values, self.lanes, result) if result else None


@dataclass(frozen=True)
class Lossless:
    """As `lossless.run`, of lanes of one pair."""

    pair: Pair
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    temperature: float = 1.0
    draws: int = 2048
    record: str = ""

    @property
    def tokens(self) -> int:
        return (1 + len(self.lanes)) * (_tokens(self.questions) + self.draws)

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        result = lossless.run(
            standard_lane(self.pair), self.lanes, self.questions, backends, watch,
            temperature=self.temperature, draws=self.draws, record=_record(self.record),
        )  # fmt: skip
        if result:
            watch.emit(ResultReady(result))

    def so_far(self) -> SuiteResult | None:
        """Whether the greedy outputs are identical; what differs is checked at the end."""
        return _on_record(self.record, len(self.questions))


@dataclass(frozen=True)
class Recommend:
    """As `recommend.run`, of lanes of one pair; or of a server, with a `baseline` and without a pair."""

    pair: Pair | None
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def tokens(self) -> int:
        return int(sum(recommend.costs(len(self.lanes))) * _tokens(self.questions))

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        baseline = _baseline(self.pair, self.baseline)
        every = {**backends, **connected([baseline, *self.lanes])}
        result = recommend.run(
            self.pair, baseline, self.lanes, self.questions, every, watch,
            seed=self.seed, records=[_record(path) for path in self._stages()],
        )  # fmt: skip
        if result:
            watch.emit(ResultReady(result))

    def so_far(self) -> SuiteResult | None:
        """The last stage that has a finished question; the choice comes at the end."""
        return next(filter(None, map(_on_record, reversed(self._stages()))), None)

    def _stages(self) -> list[str]:
        """Their records."""
        return [str(Path(self.record).with_suffix(f".{i}.jsonl")) if self.record else "" for i in (1, 2, 3)]


@dataclass(frozen=True)
class Load:
    """As `load.run`, through `servers`. `traces`: a file that takes the trace of each answer, one per line; "" for
    none."""

    servers: Servers
    questions: tuple[Question, ...]
    plan: load.Plan
    limits: Limits
    traces: str = ""
    record: str = ""

    @property
    def pair(self) -> None:
        """None."""

    def title(self, suite: str) -> str:
        """Such as "examples at 1, 2, 4 users, 127.0.0.1:8081 and 127.0.0.1:8082"."""
        *first, last = self.plan.levels
        levels = ", ".join([*map(str, first), last.words])
        return f"{suite} at {levels}, {' and '.join(url.partition('://')[2] or url for url in self.servers.urls)}"

    @property
    def lanes(self) -> Sequence[Lane]:
        return ()

    @property
    def tokens(self) -> int:
        requests = sum(map(self.plan.count, self.plan.levels))
        most = max(question.request.max_new_tokens for question in self.questions)
        return len(self.servers.urls) * requests * most

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        lanes, servers, _ = self.servers.beside([])
        record = load_record.Record(Path(self.record)) if self.record else None
        try:
            result = load.run(
                lanes, self.questions, servers, self.plan, self.limits, watch,
                record=record, trace=_appender(self.traces),
            )  # fmt: skip
        finally:
            for server in servers.values():
                server.close()
        if result:
            watch.emit(ResultReady(result))

    def so_far(self) -> LoadResult | None:
        if not Path(self.record).is_file():
            return None
        return load.load_result(*load_record.read(Path(self.record)), self.plan.levels, self.limits)


EXPERIMENTS: dict[str, type[Experiment]] = {
    "suite": Suite,
    "sweep": Sweep,
    "lossless": Lossless,
    "recommend": Recommend,
    "load": Load,
}  # by the kind that the history names


def _baseline(pair: Pair | None, baseline: Lane | None) -> Lane:
    if baseline:
        return baseline
    assert pair, "without a pair there is a server's lane"
    return standard_lane(pair)


def _record(path: str) -> Record | None:
    return Record(Path(path)) if path else None


def _on_record(path: str, questions: int | None = None) -> SuiteResult | None:
    """What a record of a suite holds, of the first questions; None without a finished one."""
    if not Path(path).is_file():
        return None
    header, results = read(Path(path))
    return suite.suite_result(
        header, [result for result in results if questions is None or result.question < questions]
    )


def _appender(path: str) -> Callable[[Trace], None]:
    """Writes traces at the end of a file, from any thread."""
    if not path:
        return lambda trace: None
    lock = threading.Lock()

    def append(trace: Trace) -> None:
        line = json.dumps(trace_to_json(trace))
        with lock, Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return append


def _tokens(questions: Sequence[Question]) -> int:
    return sum((1 + len(question.more)) * question.request.max_new_tokens for question in questions)
