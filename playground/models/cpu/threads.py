"""The CPU's threads and its memory: chooses the number of threads, and frees each tensor as soon as it is packed.

All threads are fastest on an idle machine. Where other programs use the cores, a pass waits for its slowest thread many
times a layer, and fewer threads are faster: a single one was three times as fast as two on two busy cores.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from statistics import median

import torch
from safetensors import safe_open
from transformers import modeling_utils

from playground.models.cpu.native.library import Threads

BLOCKS, PASSES = 5, 2  # measured blocks of each number of threads, in turn, and passes in each block
MARGIN = 1.1  # how much faster than all threads another number must be


def choose_threads(
    run_pass: Callable[[], object], clock: Callable[[], float] = time.perf_counter, native: bool = False
) -> bool:
    """Times passes with all threads, half of them and one, and sets the fastest number for this thread and for those
    that are started later; all of them unless fewer are clearly faster. Must be called before the lanes of a
    comparison, so that all lanes use the same number.

    Args:
        run_pass: runs one pass of the target over one token.
        clock: returns the time in seconds.
        native: whether the engine runs the target; torch then computes on one thread.

    Returns:
        True where the number changed.
    """
    used, most = threads_of(native), most_threads()
    passes: dict[int, list[float]] = {threads: [] for threads in sorted({most, max(1, most // 2), 1}, reverse=True)}
    if len(passes) == 1:
        return False
    for _ in range(BLOCKS):
        for threads, times in passes.items():
            _set_threads(threads, native)
            run_pass()  # starts or stops threads
            for _ in range(PASSES):
                start = clock()
                run_pass()
                times.append(clock() - start)
    # The median of single passes: a browser that redraws after the press of Run slows several of them, another busy
    # program nearly all.
    seconds = {threads: median(times) for threads, times in passes.items()}
    fastest = min(seconds, key=seconds.__getitem__)
    chosen = fastest if seconds[fastest] * MARGIN < seconds[most] else most
    _set_threads(chosen, native)
    return chosen != used


def threads_of(native: bool) -> int:
    """Returns the number of threads of a pass: the engine's, or torch's."""
    return Threads.number if native else torch.get_num_threads()


def _set_threads(number: int, native: bool) -> None:
    Threads.number = number
    torch.set_num_threads(1 if native else number)


@cache
def most_threads() -> int:
    """Returns the number of threads that torch starts with: the cores, or OMP_NUM_THREADS. Must first be called before
    any choice."""
    return torch.get_num_threads()


# From glibc's malloc.h. A block of at least that many bytes is returned to the system when it is freed. By default
# glibc raises the limit with every such block, to 32 MB at most, and then retains most of the weights that were packed.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SMALL, LARGEST = 128 * 1024, 32 * 1024 * 1024


@contextmanager
def tensors_apart() -> Iterator[None]:
    """Makes transformers read each tensor into a block of its own in this context, as it does on Windows, so that its
    memory can be freed as soon as it is packed. Elsewhere it maps whole files, which stay in memory while any of their
    tensors is in use."""
    mapped = modeling_utils.safe_open
    apart = lambda file, **options: safe_open(file, **{**options, "backend": "pread"})  # noqa: E731
    modeling_utils.safe_open = apart  # type: ignore[misc, assignment]
    _set_limits(SMALL, SMALL)
    try:
        yield
    finally:
        modeling_utils.safe_open = mapped  # type: ignore[misc]
        _set_limits(LARGEST, 2 * LARGEST)  # glibc's own final values, so that passes reuse their memory


def _set_limits(block: int, trim: int) -> None:
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl lacks it
        if mallopt:
            mallopt(M_MMAP_THRESHOLD, block)
            mallopt(M_TRIM_THRESHOLD, trim)
