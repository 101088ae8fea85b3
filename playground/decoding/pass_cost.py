"""Cost of a target pass on this machine, by its number of tokens.

A pass reads the weights once, whatever its number of tokens. One more token costs a GPU almost nothing, and some CPUs a
tenth of a pass. Whether a draft token is worth verifying must therefore be measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from playground.decoding.clock import Clock
from playground.decoding.runners.base import Runner
from playground.trace import PassTime

# Tokens. Kernels compute rows in blocks, so the time of a pass grows in steps.
SIZES = (1, 16, 64, 8, 32, 4, 24, 12)
LEAST = (1, 16, 64, 1, 16)  # always timed; the most important ones twice, since other load can slow a pass
TEXT = 16  # tokens in the cache before each pass
ROUNDS, SECONDS = 8, 2.0  # passes of each size; no more are started after so many seconds


class PassCost:
    """In passes over one token. Interpolates between measured sizes. Fewer tokens never cost more than a larger
    measured size: such a measurement is noise."""

    def __init__(self, times: Sequence[PassTime]) -> None:
        tokens = [time.tokens for time in times]
        seconds = np.minimum.accumulate([time.seconds for time in reversed(times)])[::-1]
        self._passes = np.interp(range(tokens[-1] + 1), tokens, seconds / seconds[0]).tolist()

    def __call__(self, tokens: int) -> float:
        """`tokens`: at least 1. Beyond the largest measured size, the cost of that size."""
        return self._passes[min(tokens, len(self._passes) - 1)]


def one_token_pass(target: Runner) -> Callable[[], None]:
    """What runs a pass over one token at every call, always after the same few tokens. `target`: with an empty
    cache."""
    ids = random.Random(0).choices(range(target.vocab_size), k=TEXT)
    target.forward(ids, keep=1)
    target.commit(TEXT)

    def run_pass() -> None:
        target.forward(ids[:1], keep=1)
        target.commit(TEXT)

    return run_pass


def time_passes(target: Runner) -> tuple[PassTime, ...]:
    """Times passes of each size in turn and keeps the fastest of each, since other load only makes a pass slower.
    Tokens are random, so that a mixture of experts uses many of its experts. Sorted by size. `target`: with an empty
    cache."""
    clock = Clock(target.device)
    ids = random.Random(0).choices(range(target.vocab_size), k=max(SIZES))
    least, sizes = ([size for size in of if TEXT + size <= target.context_limit] for of in (LEAST, SIZES))

    def seconds(size: int) -> float:
        start = clock()
        target.forward(ids[:size], keep=size)
        passed = clock() - start
        target.commit(TEXT)
        return passed

    target.forward(ids[:TEXT], keep=1)
    target.commit(TEXT)
    quickest: dict[int, float] = {}
    for done, size in enumerate(least + sizes * ROUNDS):
        if done >= len(least) and clock() > SECONDS:
            break
        quickest[size] = min(seconds(size), quickest.get(size, math.inf))
    return tuple(PassTime(size, quickest[size]) for size in sorted(quickest))
