"""What a CPU user would choose instead: this project's lanes, transformers' `generate()` and llama.cpp on one model.

llama.cpp runs the starter's own GGUF file, whose weights the starter was converted from, through the wheel xllamacpp,
which need not be installed. It decodes plainly, with one thread and with as many as torch has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.compare import decode
from playground.lane import Lane, Request, assisted_lane, standard_lane
from playground.models.cpu.threads import most_threads
from playground.models.fetch import starter
from playground.presets import Pair
from playground.progress import Progress
from playground.trace import Trace

CONTEXT = 4096  # tokens that llama.cpp makes room for
QUIET = -1  # of llama.cpp's verbosity


def tokens_per_second(
    backend: LocalBackend,
    pair: Pair,
    generate: Callable[[Trace, dict[str, Any]], object],
    requests: Sequence[Request],
    runs: int,
    progress: Callable[[Progress], None],
) -> dict[str, list[float]]:
    """Decoding speed by what decodes, prefill left out, each on the same prompt in turn; the first turn warms up.

    Args:
        generate: runs a trace's request through transformers with further options.

    Raises:
        PlaygroundError: llama.cpp is not installed, or its file cannot be had.
    """
    if not find_spec("xllamacpp"):
        raise PlaygroundError(
            "The part cpu compares with llama.cpp, which is not installed here. Install it with "
            "`pip install xllamacpp`, or leave the part out."
        )
    servers = {threads: _server(starter.fetch_gguf(progress), threads) for threads in sorted({1, most_threads()})}
    speeds: dict[str, list[float]] = {}
    for i in range(runs + 1):
        request = requests[i % len(requests)]
        backend.warm_up(standard_lane(pair), request, threading.Event())  # which chooses the number of threads
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
        """After the first new token; what is put before that is the prompt."""
        first, *later = self._times[1:]
        return len(later) / (later[-1] - first)


def _ours(backend: LocalBackend, lane: Lane, request: Request) -> Trace:
    return decode(backend, lane, request, threading.Event(), lambda round_: None)


def _decoding_speed(trace: Trace) -> float:
    """Tokens per second after the first round, which is the prefill."""
    first, last = trace.rounds[0], trace.rounds[-1]
    return (len(trace.tokens) - len(first.tokens)) / (last.end_s - first.end_s)


def _server(gguf: Path, threads: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_ctx, params.n_parallel, params.verbosity = CONTEXT, 1, QUIET
    return xllamacpp.Server(params)


def _llama(server: Any, ours: Trace) -> float:
    """llama.cpp's own figure for decoding, on the prompt's tokens and for as many new ones as the trace has."""
    asked = {"prompt": list(ours.prompt_ids or ()), "n_predict": len(ours.tokens), "temperature": 0, "ignore_eos": True}
    answer = server.handle_completions({**asked, "cache_prompt": False})
    return answer["timings"]["predicted_per_second"]
