"""Compares the choices of a CPU user: this project's lanes, transformers' `generate()` and llama.cpp on one model.

llama.cpp runs the starter's own GGUF file, whose weights the starter was converted from, as a llama-server or in the
wheel xllamacpp. It decodes without speculation, with one thread and with as many as torch has, each in a process of
its own: OpenMP waits without spinning, far more slowly, as soon as a process has more threads than the machine has
cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import torch
from transformers.generation.streamers import BaseStreamer

from playground.backends.launch import Running
from playground.backends.llama_server import start_llama
from playground.backends.local import LocalBackend
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Lane, Request, assisted_lane, standard_lane
from playground.models.cpu.threads import most_threads
from playground.models.fetch import starter
from playground.presets import Pair
from playground.progress import Progress
from playground.trace import Trace

CONTEXT = 4096  # tokens of llama.cpp's context


def tokens_per_second(
    backend: LocalBackend,
    pair: Pair,
    generate: Callable[[Trace, dict[str, Any]], object],
    requests: Sequence[Request],
    runs: int,
    progress: Callable[[Progress], None],
) -> dict[str, list[float]]:
    """Measures the decoding speeds, without prefill, by the name of the decoder. All decode the same prompt in turn;
    the first round warms up.

    Args:
        generate: runs a trace's request through transformers with further options.

    Raises:
        PlaygroundError: llama.cpp is not installed or does not start, or its file is not available.
    """
    gguf = starter.fetch_gguf(progress)
    with ExitStack() as ends:
        servers = {}
        for threads in sorted({1, most_threads()}):
            servers[threads] = start_llama(gguf, progress, slots=1, context=CONTEXT, threads=threads)
            ends.callback(servers[threads].stop)
        return _in_turn(servers, backend, pair, generate, requests, runs)


def _in_turn(
    servers: Mapping[int, Running],
    backend: LocalBackend,
    pair: Pair,
    generate: Callable[[Trace, dict[str, Any]], object],
    requests: Sequence[Request],
    runs: int,
) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {}
    for i in range(runs + 1):
        request = requests[i % len(requests)]
        backend.warm_up(standard_lane(pair), request, lambda: False)  # this chooses the number of threads again
        standard = _ours(backend, standard_lane(pair), request)
        watch = Stopwatch()
        generate(standard, {"streamer": watch})
        turn = {
            "standard lane": _decoding_speed(standard),
            f"{pair.drafter} lane": _decoding_speed(_ours(backend, assisted_lane(pair), request)),
            "generate()": watch.tokens_per_second,
        }
        for threads, server in servers.items():
            turn[f"llama.cpp, {threads} thread{'s'[: threads > 1]}"] = _llama(server, standard)
        if i:
            for what, speed in turn.items():
                speeds.setdefault(what, []).append(speed)
    return speeds


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


def _ours(backend: LocalBackend, lane: Lane, request: Request) -> Trace:
    return decode(backend, lane, request, Watch())


def _decoding_speed(trace: Trace) -> float:
    """Returns tokens per second after the first round, which is the prefill."""
    first, last = trace.rounds[0], trace.rounds[-1]
    return (len(trace.tokens) - len(first.tokens)) / (last.end_s - first.end_s)


def _llama(server: Running, ours: Trace) -> float:
    """Returns llama.cpp's own figure for decoding, on the prompt's tokens and for as many new ones as the trace has."""
    asked = {"prompt": list(ours.prompt_ids or ()), "n_predict": len(ours.tokens), "temperature": 0, "ignore_eos": True}
    answer = httpx.post(
        f"{server.url}/completion", json={**asked, "cache_prompt": False}, timeout=None, trust_env=False
    )
    return answer.raise_for_status().json()["timings"]["predicted_per_second"]
