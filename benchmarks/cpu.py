"""`python -m benchmarks cpu`: what a CPU user can choose for the starter, in one table.

The rows are this project's lanes with its engine and with torch, in four bits and in bfloat16; transformers'
`generate()`; and llama.cpp, which runs the GGUF file that the starter was converted from, with one thread and with as
many as torch has. Each row is a process of its own: two teams of threads in one process wait for each other. All decode
the same prompts in turn, and lanes of one row by turns. A second table has texts of several lengths: how long each row
takes to read them, and for a token after them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from transformers.generation.streamers import BaseStreamer

from benchmarks.parts import examples, generate
from playground.backends.launch import Running
from playground.backends.llama_server import start_llama
from playground.backends.local import LocalBackend
from playground.commands.arguments import add_settings, check_writable, positive, write
from playground.decoding.pass_cost import time_passes
from playground.decoding.runners.base import Runner
from playground.experiments.events import Watch
from playground.experiments.race import Race
from playground.format import count, number
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.cpu.threads import most_threads
from playground.models.fetch import starter
from playground.models.load import STARTER
from playground.models.sizing import weights_bytes
from playground.models.store import ModelStore
from playground.presets import load_pairs
from playground.trace import PassTime, Trace
from playground.views.table import Table

CONTEXT = 4096  # tokens of llama.cpp's context
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
READINGS = 20  # of as many bytes as the weights have
TEXTS, AFTER = (128, 512, 1024), 16  # tokens of a text, and decoded after it
OURS = {
    "native, 4 bits": ("", "auto"),
    "native, bfloat16": ("", "bfloat16"),
    "torch, 4 bits": ("torch", "auto"),
    "torch, bfloat16": ("torch", "bfloat16"),
}  # PLAYGROUND_ENGINE and the number format
GENERATE = "generate(), 4 bits"


@dataclass(frozen=True)
class Decoder:
    """A row. `standard`, `assisted`: tokens a second of each run, prefill left out. `same`: whether all assisted
    outputs are the standard ones. `passes`: ms by width. `floor_ms`: the time of reading as many bytes as the weights
    have. `readings`: of each of TEXTS, run by run."""

    name: str
    standard: tuple[float, ...]
    assisted: tuple[float, ...] = ()
    same: bool | None = None
    passes: tuple[PassTime, ...] = ()
    floor_ms: float | None = None
    readings: tuple[tuple[Reading, ...], ...] = ()


class Reading(NamedTuple):
    """A text of random tokens. `prefill_s`: seconds until the first token after it; `token_s`: a token then."""

    prefill_s: float
    token_s: float


def add(commands: argparse._SubParsersAction) -> None:
    cpu = commands.add_parser(
        "cpu",
        help="the starter on this CPU: the engine, torch, generate(), llama.cpp",
        description="Measures decoding and passes of the starter with each engine and number format.",
    )
    cpu.set_defaults(command=_cpu)
    cpu.add_argument("--runs", type=positive, default=5, metavar="N", help="prompts that each decodes (default: 5)")
    add_settings(cpu, "drafter", "max_new_tokens")
    cpu.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")


def _cpu(options: argparse.Namespace) -> None:
    check_writable(options.json)
    found = measured(options.runs, options.max_new_tokens, options.drafter, print)
    print(table(found).text())
    print(long_texts(found).text())
    if options.json:
        write(options.json, json.dumps([asdict(each) for each in found], indent=1))


def measured(runs: int, tokens: int, drafter: str, say: Callable[[str], None]) -> list[Decoder]:
    """Measures all rows. The first prompt warms up and does not count.

    Raises:
        PlaygroundError: llama.cpp is not installed or does not start, or a model is not available.
    """
    requests = [examples(tokens)[i % len(examples(tokens))] for i in range(runs + 1)]
    with ExitStack() as ends:
        servers = dict(_servers(ends, say))
        lanes = {name: ends.enter_context(_process(*how, drafter)) for name, how in OURS.items()}
        speeds: dict[str, list[tuple[float, float | None, bool]]] = {}
        for i, request in enumerate(requests):
            say(f"prompt {i} of {runs}")
            turn = {name: pool.submit(_decoded, request).result() for name, pool in lanes.items()}
            ids = turn["torch, 4 bits"].prompt
            turn[GENERATE] = lanes["torch, 4 bits"].submit(_generated, request).result()
            for name, server in servers.items():
                turn[name] = Speeds(_llama(server, ids, tokens)["predicted_per_second"])
            for name, speed in turn.items() if i else ():
                speeds.setdefault(name, []).append((speed.standard, speed.assisted, speed.same))
        passes = {name: pool.submit(_passes).result() for name, pool in lanes.items()}
        say("long texts")
        readings = _readings(lanes, servers, runs)
    rows = []
    for name, each in speeds.items():
        standard, assisted, same = zip(*each, strict=True)
        timed, floor_ms = passes.get(name, ((), None))
        both = name in lanes
        read = tuple(map(tuple, readings.get(name, ())))
        rows.append(
            Decoder(name, standard, assisted if both else (), all(same) if both else None, timed, floor_ms, read)
        )
    return rows


def _readings(
    lanes: Mapping[str, ProcessPoolExecutor], servers: Mapping[str, Running], runs: int
) -> dict[str, list[list[Reading]]]:
    """Returns the readings of each row, of each of TEXTS, run by run. The first run warms up and does not count."""
    vocabulary = next(iter(lanes.values())).submit(_vocabulary).result()
    readings: dict[str, list[list[Reading]]] = {}
    for i, (at, length) in product(range(runs + 1), enumerate(TEXTS)):
        text = random.Random(length).choices(range(vocabulary), k=length)
        read = {name: pool.submit(_read, text).result() for name, pool in lanes.items()}
        read |= {name: _llama_reads(server, text) for name, server in servers.items()}
        for name, each in read.items() if i else ():
            readings.setdefault(name, [[] for _ in TEXTS])[at].append(each)
    return readings


def table(found: Sequence[Decoder]) -> Table:
    """Shows the rows; the speed of each is also given over the first row's."""
    first = statistics.median(found[0].standard)

    def speed(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"

    rows = []
    for it in found:
        ratios = [ours / base for ours, base in zip(it.assisted, it.standard, strict=False)]
        ms = {each.tokens: number(1e3 * each.seconds) for each in it.passes}
        own = statistics.median(it.standard)
        rows.append(
            (it.name, speed(it.standard), number(own / first), speed(it.assisted) if ratios else "",
             number(statistics.median(ratios)) if ratios else "", {True: "yes", False: "no", None: ""}[it.same],
             *(ms.get(width, "") for width in WIDTHS), "" if it.floor_ms is None else number(it.floor_ms))
        )  # fmt: skip
    head = ("", "tok/s", "÷ first row", "assisted", "speed-up", "same tokens", *(f"ms, {w}" for w in WIDTHS), "floor")
    return Table("Decoders", head, tuple(rows), numbers=len(head) - 1)


def long_texts(found: Sequence[Decoder]) -> Table:
    """Shows for each row the ms of reading texts, and of a token after each."""
    rows = []
    for it in found:
        if it.readings:
            prefills = [statistics.median(each.prefill_s for each in runs) for runs in it.readings]
            tokens = [statistics.median(each.token_s for each in runs) for runs in it.readings]
            rows.append((it.name, *(number(1e3 * seconds) for seconds in (*prefills, *tokens))))
    head = *(f"prefill of {n:,}" for n in TEXTS), *(f"a token after {n:,}" for n in TEXTS)
    return Table("Long texts, ms", ("", *head), tuple(rows), numbers=len(head))


@dataclass(frozen=True)
class Speeds:
    """Tokens a second of one prompt. `prompt`: its token ids."""

    standard: float
    assisted: float | None = None
    same: bool = True
    prompt: tuple[int, ...] = ()


@contextmanager
def _process(engine: str, dtype: str, drafter: str) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (engine, dtype, drafter)) as pool:
        yield pool


_here: dict[str, Any] = {}  # the backend and the lanes of this process


def _begin(engine: str, dtype: str, drafter: str) -> None:
    if engine:
        os.environ["PLAYGROUND_ENGINE"] = engine
    pair = load_pairs()[0][STARTER]
    backend, lanes = LocalBackend(ModelStore(), pair, dtype), [standard_lane(pair), assisted_lane(pair, drafter)]
    for lane in lanes:
        backend.load(lane, lambda step: None)
    _here.update(backend=backend, lanes=lanes)


def _decoded(request: Request) -> Speeds:
    backend, lanes = _here["backend"], _here["lanes"]
    for lane in lanes:
        backend.warm_up(lane, request, lambda: False)  # this chooses the number of threads again
    standard, assisted = Race({LOCAL: backend}, request, Watch()).run(lanes)
    assert standard and assisted and standard.prompt_ids
    same = standard.token_ids == assisted.token_ids
    return Speeds(_speed(standard), _speed(assisted), same, standard.prompt_ids)


def _generated(request: Request) -> Speeds:
    backend, lane = _here["backend"], _here["lanes"][0]
    trace = Race({LOCAL: backend}, request, Watch()).run([lane])[0]
    assert trace
    watch = Stopwatch()
    generate(backend.models(lane), trace, {"streamer": watch})
    return Speeds(watch.tokens_per_second)


def _passes() -> tuple[tuple[PassTime, ...], float]:
    """Returns the times of passes, and the ms of reading as many bytes as the weights have."""
    runner = _target()
    timed, _ = time_passes(runner)
    return timed, 1e3 * _reading_s(weights_bytes(runner.model))


def _target() -> Runner:
    """Returns a runner of this process's target, with an empty cache."""
    backend = _here["backend"]
    models = backend.models(_here["lanes"][0])
    return backend.runners(models)(models.target)


def _reading_s(size: int) -> float:
    """Returns the seconds in which all threads read so many bytes from memory: the quickest of several sums."""
    threads, numbers, took = torch.get_num_threads(), torch.ones(size // 4), list[float]()
    torch.set_num_threads(most_threads())
    for _ in range(READINGS):
        start_s = time.perf_counter()
        numbers.sum()
        took.append(time.perf_counter() - start_s)
    torch.set_num_threads(threads)
    return min(took)


def _vocabulary() -> int:
    return _target().vocab_size


def _read(text: Sequence[int]) -> Reading:
    runner = _target()
    start_s = time.perf_counter()
    next_id = int(runner.forward(text, keep=1).argmax())
    read_s = time.perf_counter()
    for n in range(AFTER):
        runner.commit(len(text) + n)
        next_id = int(runner.forward([next_id], keep=1).argmax())
    return Reading(read_s - start_s, (time.perf_counter() - read_s) / AFTER)


class Stopwatch(BaseStreamer):
    """Reads the clock at each token of a `generate()` call."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self._times.append(time.perf_counter())

    def end(self) -> None:
        pass

    @property
    def tokens_per_second(self) -> float:
        """The speed after the first new token. The first call of `put` passes the prompt."""
        first, *later = self._times[1:]
        return len(later) / (later[-1] - first)


def _speed(trace: Trace) -> float:
    """Returns tokens a second after the first round, which is the prefill, by the lane's own clock."""
    later = trace.rounds[1:]
    seconds = sum((r.draft_s or 0.0) + (r.verify_s or 0.0) + (r.commit_s or 0.0) for r in later)
    return sum(len(r.tokens) for r in later) / seconds


def _servers(ends: ExitStack, say: Callable[[str], None]) -> Iterator[tuple[str, Running]]:
    """Starts llama.cpp with one thread and with all. OpenMP waits far more slowly as soon as a process has more threads
    than there are cores, so each is a process of its own."""
    gguf = starter.fetch_gguf(lambda step: None)
    for threads in sorted({1, most_threads()}):
        say(f"starting llama.cpp with {threads} threads")
        server = start_llama(gguf, lambda step: None, slots=1, context=CONTEXT, threads=threads)
        ends.callback(server.stop)
        yield f"llama.cpp, {count(threads, 'thread')}", server


def _llama(server: Running, ids: Sequence[int], tokens: int) -> dict[str, float]:
    """Returns llama.cpp's own times of reading these tokens and decoding more."""
    asked = {"prompt": list(ids), "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = httpx.post(f"{server.url}/completion", json=asked, timeout=None, trust_env=False)
    return answer.raise_for_status().json()["timings"]


def _llama_reads(server: Running, text: Sequence[int]) -> Reading:
    times = _llama(server, text, AFTER + 1)
    return Reading(times["prompt_ms"] / 1e3, times["predicted_per_token_ms"] / 1e3)
