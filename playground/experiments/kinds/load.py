"""Load: one server or two at several numbers of users, or rates, to see where speculation stops paying."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from playground.errors import check
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import AnswerOptions, Decoders, PromptOptions, option

if TYPE_CHECKING:
    from playground.experiments.work import Load

MOST = 256  # requests in flight in open loop; the next one then waits, which its latency includes


@dataclass(frozen=True)
class LoadOptions(AnswerOptions, PromptOptions):
    baseline_server: str = option("", "Standard server", "address of one with the same model, without speculation")
    server: str = option("", "Assisted server", "address of the server to measure, such as http://127.0.0.1:8082")
    model: str = option("", "Model", "the model's name, if a server has several")
    concurrency: tuple[int, ...] = option(
        (1, 2, 4, 8), "Users", "users at the same time: closed loop", low=1, high=MOST
    )
    rate: tuple[float, ...] = option(
        (), "Requests a second", "rates of random arrivals, in place of users: open loop", low=0.001, high=MOST, one=1.0
    )
    requests: int = option(
        16, "Requests", "requests of each level, at least one a user", low=1, high=100_000, folded=True
    )
    ttft_limit: float = option(1.0, "TTFT limit", "seconds to the first token, for goodput", low=0.001, folded=True)
    tpot_limit: float = option(0.1, "TPOT limit", "seconds per token after it, for goodput", low=0.001, folded=True)
    arrivals_seed: int = option(0, "Arrivals", "seed of the arrival times", folded=True)
    traces: str = option("", "Traces", "a file that takes the trace of every answer, one a line", places=("terminal",))


def _work(options: LoadOptions, on: Decoders | None) -> tuple[Load, str]:
    from playground.backends.connect import Servers
    from playground.experiments.load import Plan
    from playground.experiments.work import Load
    from playground.metrics.load import Level, Limits

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
        traces=str(Path(options.traces).absolute()) if options.traces else "",
    )
    return work, work.title(name)


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
    pair=False,
)
