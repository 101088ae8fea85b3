"""Speculation in a batch, predicted from the cost of a pass by its width.

A verify pass of b sequences computes b(γ + 1) tokens where standard decoding computes b. It is nearly free only while
both read the weights for about the same time, that is while the width is small for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from playground.theory.attribution import decoding
from playground.trace import PassTime, Trace

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BatchPoint:
    """A predicted speed-up at a batch size. `verify`: the cost of a verify pass in plain passes of the same batch.
    `extrapolated`: the verify pass is wider than any that was measured."""

    batch: int
    speedup: float
    verify: float
    extrapolated: bool


def batches_of(baseline: Trace, other: Trace) -> list[BatchPoint]:
    """Of a finished run, from its own acceptance, drafting and measured passes; empty where those are unknown."""
    found, times = decoding(baseline, other), other.environment.pass_times
    if found is None or not found.split or len(times) < 2:
        return []
    used = sum(len(round_.drafted) for round_ in other.rounds[1:]) / (len(other.rounds) - 1)
    return by_batch(times, found.tokens_per_pass, used, found.draft / used)


def pass_seconds(times: Sequence[PassTime]) -> Callable[[float], float]:
    """The seconds of a pass by its width in tokens: interpolated and, beyond the widest measured, on along the line
    through the last two, as where the device is limited by its arithmetic. Fewer tokens never cost more than more.

    Args:
        times: of two widths or more, sorted.
    """
    widths = [time.tokens for time in times]
    seconds = np.minimum.accumulate([time.seconds for time in reversed(times)])[::-1]
    slope = (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2])
    return lambda width: float(np.interp(width, widths, seconds) + slope * max(0.0, width - widths[-1]))


def by_batch(
    times: Sequence[PassTime], tokens_per_pass: float, lookahead: float, c: float, batches: Sequence[int] = BATCHES
) -> list[BatchPoint]:
    """Each batch size, under three assumptions: acceptance does not depend on the batch, attention costs what it does
    for a short sequence, and drafting grows with the batch as a pass of the target does.

    Args:
        times: the target's passes, as in an Environment.
        tokens_per_pass: mean accepted length.
        lookahead: mean number of tokens in a draft.
        c: cost of a draft token, in plain passes, at batch 1.
    """
    seconds = pass_seconds(times)
    points = []
    for batch in batches:
        width = batch * (lookahead + 1)
        verify = seconds(width) / seconds(batch)
        points.append(BatchPoint(batch, tokens_per_pass / (verify + lookahead * c), verify, width > times[-1].tokens))
    return points
