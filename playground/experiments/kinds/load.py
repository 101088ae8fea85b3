"""Load: one server or two at several numbers of users, or rates, to see where speculation stops paying."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from playground.backends.base import Backend
from playground.backends.connect import Servers
from playground.errors import check
from playground.experiments import load, load_record
from playground.experiments.events import ResultReady
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import AnswerOptions, Decoders, PromptOptions, option
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.export import trace_to_json
from playground.lane import Lane
from playground.metrics.load import Level, Limits
from playground.results import LoadResult
from playground.trace import Trace


@dataclass(frozen=True)
class LoadOptions(AnswerOptions, PromptOptions):
    baseline_server: str = option("", "Standard server", "address of one with the same model, without speculation")
    server: str = option("", "Assisted server", "address of the server to measure, such as http://127.0.0.1:8082")
    model: str = option("", "Model", "the model's name, if a server has several")
    concurrency: tuple[int, ...] = option(
        (1, 2, 4, 8), "Users", "users at the same time: closed loop", low=1, high=load.MOST
    )
    rate: tuple[float, ...] = option(
        (), "Requests a second", "rates of random arrivals, in place of users: open loop", low=0.001, high=load.MOST,
        one=1.0,
    )  # fmt: skip
    requests: int = option(
        16, "Requests", "requests of each level, at least one a user", low=1, high=100_000, folded=True
    )
    ttft_limit: float = option(1.0, "TTFT limit", "seconds to the first token, for goodput", low=0.001, folded=True)
    tpot_limit: float = option(0.1, "TPOT limit", "seconds per token after it, for goodput", low=0.001, folded=True)
    arrivals_seed: int = option(0, "Arrivals", "seed of the arrival times", folded=True)
    traces: str = option("", "Traces", "a file that takes the trace of every answer, one a line", places=("terminal",))


@dataclass(frozen=True)
class Load:
    """`traces`: a file that takes the trace of each answer, one per line; "" for none."""

    servers: Servers
    questions: tuple[Question, ...]
    plan: load.Plan
    limits: Limits
    traces: str = ""
    record: str = ""

    @property
    def pair(self) -> None:
        """None."""

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


def _work(options: LoadOptions, on: Decoders | None) -> tuple[Load, str]:
    name, questions = options.read()
    server = options.server.strip()
    check(bool(server), "Give the address of the server to measure.")
    levels = [Level(rate=rate) for rate in options.rate] or [Level(concurrency=n) for n in options.concurrency]
    check(bool(levels), "Give numbers of users, or of requests a second.")
    work = Load(
        Servers(server, options.baseline_server.strip(), options.model.strip()),
        questions,
        load.Plan(tuple(dict.fromkeys(levels)), options.requests, options.arrivals_seed),
        Limits(options.ttft_limit, options.tpot_limit),
        traces=str(Path(options.traces).absolute()) if options.traces else "",
    )
    *first, last = levels
    at = ", ".join([*map(str, first), last.words])
    return work, f"{name} at {at}, {' and '.join(url.partition('://')[2] or url for url in work.servers.urls)}"


KIND = Kind(
    name="load",
    does="Sends the prompts of a suite to one server or two, at several levels of load: where does speculation stop "
    "paying?",
    intro="Speculation pays while a server has few users, and can slow it down at high concurrency. A load test sends "
    "the prompts of a suite to two servers, level by level, to find where that turns.",
    hint="Start both servers, as on the tab Servers, then press Run. Give llama-server as many --slots as users.",
    exits="0: all requests were answered; 1: some failed",
    options=LoadOptions,
    work=_work,
    experiment=Load,
    pair=False,
)
