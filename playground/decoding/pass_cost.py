"""What a pass of the target costs on this machine, by the number of its tokens.

A pass reads the weights once, however many tokens it is over. One more token costs a GPU next to nothing beside that,
and some CPUs a tenth of a pass: whether it is worth verifying is known only once it has been measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from playground.decoding.cached import CachedModel
from playground.decoding.clock import Clock
from playground.trace import PassTime

SIZES = (1, 4, 8, 12, 16, 24, 32, 64)  # tokens; kernels take rows in blocks, so that what a pass takes grows in steps
TEXT = 16  # tokens that stand before them
ROUNDS, SECONDS = 8, 2.0  # as many passes of each size, but none after that time


class PassCost:
    """In passes over one token. What lies between two sizes that were measured costs in proportion."""

    def __init__(self, times: Sequence[PassTime]) -> None:
        self._tokens = [time.tokens for time in times]
        self._passes = [time.seconds / times[0].seconds for time in times]

    def __call__(self, tokens: int) -> float:
        return float(np.interp(tokens, self._tokens, self._passes))


def time_passes(model: PreTrainedModel) -> tuple[PassTime, ...]:
    """Passes of every size in turn, over tokens at random, which go to many of a mixture's experts. Of each size the
    quickest counts: whatever else uses the machine makes passes slower, and never quicker."""
    target, clock = CachedModel(model), Clock(model.device)
    ids = random.Random(0).choices(range(target.vocab_size), k=max(SIZES))
    sizes = [size for size in SIZES if TEXT + size <= target.context_limit]

    def seconds(size: int) -> float:
        start = clock()
        target.forward(ids[:size], keep=size)
        passed = clock() - start
        target.keep(TEXT)
        return passed

    target.forward(ids[:TEXT], keep=1)
    target.keep(TEXT)
    rounds = [[seconds(size) for size in sizes]]
    while len(rounds) < ROUNDS and clock() < SECONDS:
        rounds.append([seconds(size) for size in sizes])
    return tuple(PassTime(size, min(times)) for size, times in zip(sizes, zip(*rounds, strict=True), strict=True))
