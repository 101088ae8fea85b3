"""Formulas of speculative decoding: tokens per pass and speed-up, the price of a token, a batch, the memory's limit.

The letters are those of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding":

α: the acceptance rate of a draft token whose predecessors were accepted. γ: the lookahead. c: the time of one draft
token, in target passes over one token. E: tokens per target pass.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from playground import metrics
from playground.theory.attribution import decoding
from playground.trace import Memory, PassTime, Trace


def expected_tokens(conditional: Sequence[float]) -> float:
    """Return E, equation 1 where each position has an acceptance of its own: one token, the bonus or the correction,
    and for each position the product of the acceptances up to it. `conditional`: given that all positions before were
    accepted."""
    return 1 + float(np.cumprod(conditional).sum())


def speedup(tokens: float, gamma: int, c: float, verify: float = 1.0) -> float:
    """E / (γc + v), theorem 3.8 where a verify pass costs as much as a plain one (v = 1).

    Args:
        tokens: E, tokens per target pass.
        c: cost of a draft token, in plain passes.
        verify: v, cost of a pass over γ + 1 tokens, in plain passes.
    """
    return tokens / (gamma * c + verify)


# What a token costs.


def price_of(trace: Trace, hourly_rate: float) -> float | None:
    """Return the price of a million tokens at the speed of a lane, prefill included, on a machine that costs
    `hourly_rate` and does nothing else, in its currency; None if it has no tokens."""
    speed = metrics.measure(trace).tokens_per_s
    return hourly_rate / 3600 / speed * 1e6 if speed else None


# Speculation in a batch, predicted from the cost of a pass by its width. A verify pass of b sequences computes
# b(γ + 1) tokens where standard decoding computes b. It is nearly free only while both read the weights for about the
# same time, that is while the width is small for the device.


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
    """Predict a finished run in a batch, from its own acceptance, drafting and measured passes; empty where those are
    unknown."""
    found, times = decoding(baseline, other), other.environment.pass_times
    if found is None or not found.split or len(times) < 2:
        return []
    used = sum(len(round_.drafted) for round_ in other.rounds[1:]) / (len(other.rounds) - 1)
    return by_batch(times, found.tokens_per_pass, used, found.draft / used)


def pass_seconds(times: Sequence[PassTime]) -> Callable[[float], float]:
    """Return the seconds of a pass by its width in tokens: interpolated and, beyond the widest measured, extended along
    the line through the last two, as where arithmetic is the limit. Fewer tokens never cost more.

    Args:
        times: of two widths or more, sorted.
    """
    widths = [time.tokens for time in times]
    seconds = np.minimum.accumulate([time.seconds for time in reversed(times)])[::-1]
    slope = (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2])
    return lambda width: float(np.interp(width, widths, seconds) + slope * max(0.0, width - widths[-1]))


def by_batch(times: Sequence[PassTime], tokens_per_pass: float, lookahead: float, c: float) -> list[BatchPoint]:
    """Predict the speed-up at each batch size, under three assumptions: acceptance does not depend on the batch,
    attention costs the same as for a short sequence, and drafting grows with the batch as a pass of the target does.

    Args:
        times: the target's passes, as in an Environment.
        tokens_per_pass: mean accepted length.
        lookahead: mean number of tokens in a draft.
        c: cost of a draft token, in plain passes, at batch 1.
    """
    seconds = pass_seconds(times)
    points = []
    for batch in BATCHES:
        width = batch * (lookahead + 1)
        verify = seconds(width) / seconds(batch)
        points.append(BatchPoint(batch, tokens_per_pass / (verify + lookahead * c), verify, width > times[-1].tokens))
    return points


# The limit of the memory's bandwidth.


@dataclass(frozen=True)
class Limit:
    """The most tokens per second that a lane can decode if each pass reads the memory it needs once. `experts`: how
    many of each layer a pass is expected to read, on average over the passes; None if the target is no mixture of
    experts."""

    tokens_per_s: float
    experts: float | None


def experts_read(count: int, per_token: int, tokens: int) -> float:
    """Return the expected number of a layer's experts that a pass over so many tokens reads, E (1 - (1 - k /
    E)^tokens), if each token chooses k of E independently and uniformly. Tokens of one text choose more alike and read
    fewer."""
    return count * (1 - float(1 - per_token / count) ** tokens)


def limit_of(trace: Trace) -> Limit | None:
    """Return the limit of a lane at its own tokens per pass and widths of passes, with the weights and caches that it
    held at its end. Drafting reads more, so a drafter with weights cannot reach it. None where the bandwidth, the
    memory or a token is missing."""
    tokens_per_pass, memory = metrics.measure(trace).mean_accepted_length, trace.memory
    if not trace.environment.bandwidth or not memory or not memory.target_weights or tokens_per_pass is None:
        return None
    experts = _experts(trace, memory)
    read: float = memory.target_weights + memory.target_cache  # bytes of a pass
    if memory.experts and experts is not None:
        read -= memory.experts.weights * (1 - experts / memory.experts.count)
    return Limit(tokens_per_pass * trace.environment.bandwidth / read, experts)


def _experts(trace: Trace, memory: Memory) -> float | None:
    """Return the expected experts a layer, on average over the passes after the prefill."""
    if memory.experts is None:
        return None
    widths = [1 + len(round_.drafted) for round_ in trace.rounds[1:] or trace.rounds]
    of = memory.experts
    return statistics.fmean(experts_read(of.count, of.per_token, width) for width in widths)
