"""Measurements of this machine: the cost of a target pass by its number of tokens, and the memory bandwidth.

A pass reads the weights once, whatever its number of tokens. One more token costs a GPU almost nothing, and some CPUs a
tenth of a pass. Whether a draft token is worth verifying must therefore be measured. The bandwidth, which limits the
decoding of one sequence, is measured by a copy.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from playground.decoding.clock import Clock
from playground.decoding.runners.base import Runner
from playground.decoding.runners.factory import Runners
from playground.decoding.runners.native import NativeRunner
from playground.models.cpu.native.library import Threads
from playground.models.device import free_bytes
from playground.models.load import LoadedModel
from playground.trace import PassTime

# Numbers of tokens. Kernels compute rows in blocks, so the time of a pass grows in steps.
SIZES = (1, 16, 64, 8, 4, 32, 2, 24, 12, 6)
WIDE = (128, 264)  # for trees that are larger than the largest of SIZES
LEAST = (1, 16, 64, 1, 16)  # always timed; the most important ones twice, since other load can slow a pass
TEXT = 16  # tokens in the cache before each pass
ROUNDS, SECONDS = 8, 2.0  # passes of each size; none is started after so many seconds
TRIES = 3  # measurements that other load disturbed
STEADY = 1.1  # the two quickest passes of a size differ by less where no other load disturbed it


class PassCost:
    """The cost of a pass by its number of tokens, in passes over one token. Interpolates between measured sizes. Fewer
    tokens never cost more than a larger measured size: such a measurement is noise.

    Args:
        times: measured passes, sorted by size.
        computed: `Runner.computed`, which adds the padding to a number of tokens.
    """

    def __init__(self, times: Sequence[PassTime], computed: Callable[[int], int] = lambda tokens: tokens) -> None:
        tokens = [time.tokens for time in times]
        seconds = np.minimum.accumulate([time.seconds for time in reversed(times)])[::-1]
        self._passes = np.interp(range(tokens[-1] + 1), tokens, seconds / seconds[0]).tolist()
        self._computed = computed

    def __call__(self, tokens: int) -> float:
        """Returns the cost of a pass over `tokens`, at least 1; beyond the largest measured size, that size's cost."""
        return self._passes[min(self._computed(tokens), len(self._passes) - 1)]


def one_token_pass(target: Runner) -> Callable[[], None]:
    """Returns a function that runs a pass over one token, always after the same TEXT tokens. `target` has an empty
    cache."""
    ids = random.Random(0).choices(range(target.vocab_size), k=TEXT)
    target.forward(ids, keep=1)
    target.commit(TEXT)

    def run_pass() -> None:
        target.forward(ids[:1], keep=1)
        target.commit(TEXT)

    return run_pass


def sizes_for(target: Runner, most: int) -> tuple[int, ...]:
    """Returns the sizes to time for passes of up to `most` tokens, within the context."""
    above = next((i for i, size in enumerate(WIDE) if size >= most), len(WIDE) - 1)
    sizes = (*SIZES, *WIDE[: above + 1]) if most > max(SIZES) else SIZES
    return tuple(size for size in sizes if TEXT + size <= target.context_limit)


def cost_of(model: LoadedModel, runners: Runners, target: Runner, most: int = max(SIZES)) -> PassCost:
    """Returns the cost of the target's passes. They are timed once for each way to run it, and where other load
    disturbed them again the next times, TRIES in all: the quickest whole measurement counts, or the first quiet one.

    Args:
        target: a runner of the model.
        most: tokens of the widest pass whose cost is needed.
    """
    how = runners.describe(model)
    known = model.pass_times.get(how, ())
    narrow = not known or known[-1].tokens < max(sizes_for(target, most))
    tries = 0 if narrow else model.disturbed.get(how, TRIES)
    if tries < TRIES:
        timed, steady = time_passes(runners(model), most)
        if narrow or steady or timed[0].seconds < known[0].seconds:
            model.pass_times[how] = timed
        model.disturbed[how] = TRIES if steady else tries + 1
    return PassCost(model.pass_times[how], target.computed)


def time_passes(target: Runner, most: int = max(SIZES)) -> tuple[tuple[PassTime, ...], bool]:
    """Times passes of each size in turn and takes the fastest of each, since other load only makes a pass slower.
    Tokens are random, so that a mixture of experts uses many of its experts.

    Returns:
        The times, sorted by size; and whether they are steady: the two quickest passes of each size are alike.

    Args:
        target: a runner with an empty cache.
        most: tokens of the widest pass whose cost is needed.
    """
    alone = isinstance(target, NativeRunner) and Threads.number == 1
    # The time that a single thread computes leaves out what other programs take.
    clock, sizes = time.thread_time if alone else Clock(target.device), sizes_for(target, most)
    started = clock()
    ids = random.Random(0).choices(range(target.vocab_size), k=max(sizes))
    least = (*(size for size in LEAST if size in sizes), *(size for size in WIDE if size in sizes))

    def seconds(size: int) -> float:
        start = clock()
        target.forward(ids[:size], keep=size)
        passed = clock() - start
        target.commit(TEXT)
        return passed

    target.forward(ids[:TEXT], keep=1)
    target.commit(TEXT)
    took: dict[int, list[float]] = {}
    for done, size in enumerate(least + sizes * ROUNDS):
        if done >= len(least) and clock() - started > SECONDS:
            break
        took.setdefault(size, []).append(seconds(size))
    steady = all(len(each) > 1 and sorted(each)[1] < STEADY * min(each) for each in took.values())
    return tuple(PassTime(size, min(took[size])) for size in sorted(took)), steady


CPU_BYTES, GPU_BYTES = 64 * 2**20, 2**30  # of source and copy: larger than caches, slower to copy than a launch
SHARE = 4  # each buffer takes at most a quarter of the free bytes
READINGS, READING_S = 5, 0.06  # of each reading the fastest copy counts: an idle device first raises its clocks


class Bandwidth:
    """The bytes per second, read and written, that a device's memory moves: the best of several short readings, since
    other load only slows a copy. Where they are unsteady, more are taken the next times, TRIES in all.

    Args:
        reading: takes one reading.
    """

    def __init__(self, reading: Callable[[], float]) -> None:
        self._reading = reading
        self._readings: list[float] = []

    def measure(self) -> None:
        """Takes readings, unless there are enough. Called while nothing of this process decodes."""
        if not self._readings or (self.spread >= STEADY and len(self._readings) < TRIES * READINGS):
            self._readings += [self._reading() for _ in range(READINGS)]

    @property
    def best(self) -> float:
        return max(self._readings)

    @property
    def spread(self) -> float:
        """The best reading over their median: large where most were disturbed."""
        return self.best / statistics.median(self._readings)


@cache
def bandwidth(device: torch.device) -> Bandwidth:
    """Returns the bandwidth of a device, measured at least once."""
    found = Bandwidth(partial(_copied, device))
    found.measure()
    return found


def _copied(device: torch.device) -> float:
    """Returns the bytes per second of the fastest copy within READING_S."""
    size = min(GPU_BYTES if device.type == "cuda" else CPU_BYTES, free_bytes(device) // SHARE)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    until_s = time.perf_counter() + READING_S
    quickest_s = _seconds(copy, source)
    while time.perf_counter() < until_s:
        quickest_s = min(quickest_s, _seconds(copy, source))
    return 2 * size / quickest_s


def _seconds(copy: Tensor, source: Tensor) -> float:
    """Returns the seconds of one copy; on a GPU by its own clock, without the launch."""
    if source.device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(source.device):
            start.record()
            copy.copy_(source)
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1e3
    start_s = time.perf_counter()
    copy.copy_(source)
    if source.device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - start_s
