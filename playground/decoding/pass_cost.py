"""What a pass of the target costs on this machine, by the number of its tokens.

A pass reads the weights once, however many tokens it is over. One more token costs a GPU next to nothing beside that,
and some CPUs a tenth of a pass: whether it is worth verifying is known only once it has been measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from playground.decoding.clock import Clock
from playground.decoding.runners.eager import EagerRunner
from playground.trace import PassTime

# Tokens; kernels take rows in blocks, so that what a pass takes grows in steps.
SIZES = (1, 16, 64, 8, 32, 4, 24, 12)
LEAST = (1, 16, 64, 1, 16)  # always timed; those twice that most depends on, as one pass may meet a busy moment
TEXT = 16  # tokens that stand before them
ROUNDS, SECONDS = 8, 2.0  # as many passes of each size, but no others after that time


class PassCost:
    """In passes over one token. What lies between two sizes that were measured costs in proportion, and fewer tokens
    cost no more than was measured of more: that was a busy moment."""

    def __init__(self, times: Sequence[PassTime]) -> None:
        tokens = [time.tokens for time in times]
        seconds = np.minimum.accumulate([time.seconds for time in reversed(times)])[::-1]
        self._passes = np.interp(range(tokens[-1] + 1), tokens, seconds / seconds[0]).tolist()

    def __call__(self, tokens: int) -> float:
        """`tokens`: at least 1. Beyond what was measured a pass costs as much as the longest that was."""
        return self._passes[min(tokens, len(self._passes) - 1)]


def time_passes(model: PreTrainedModel) -> tuple[PassTime, ...]:
    """Passes of the sizes in turn, over tokens at random, which go to many of a mixture's experts; by size. Of each the
    quickest counts: whatever else uses the machine makes passes slower, and never quicker."""
    target, clock = EagerRunner(model), Clock(model.device)
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
