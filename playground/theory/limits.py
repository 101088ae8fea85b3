"""What the memory's bandwidth allows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from playground import metrics
from playground.trace import Memory, Trace


@dataclass(frozen=True)
class Limit:
    """The most tokens per second that a lane can decode where each pass reads what it needs of the memory once.
    `experts`: how many of each layer a pass is expected to read, on average over the passes; None if the target is no
    mixture of experts."""

    tokens_per_s: float
    experts: float | None


def bandwidth_limit(read: float, bytes_per_s: float, tokens_per_pass: float = 1.0) -> float:
    """The most tokens per second.

    Args:
        read: bytes that a pass reads: weights and KV cache.
        bytes_per_s: of the device's memory, measured by a copy.
        tokens_per_pass: mean accepted length.
    """
    return tokens_per_pass * bytes_per_s / read


def experts_read(count: int, per_token: int, tokens: int) -> float:
    """How many of a layer's experts a pass over so many tokens is expected to read, E (1 - (1 - k / E)^tokens), if each
    token chooses k of E by itself and none is preferred. Tokens of one text choose more alike and read fewer."""
    return count * (1 - float(1 - per_token / count) ** tokens)


def limit_of(trace: Trace) -> Limit | None:
    """The limit of a lane at its own tokens per pass and widths of passes, with the weights and caches that it held at
    its end; drafting reads more, so it cannot be reached by a drafter with weights. None where the bandwidth, the
    memory or a token is missing."""
    tokens_per_pass, memory = metrics.measure(trace).mean_accepted_length, trace.memory
    if not trace.environment.bandwidth or not memory or not memory.target_weights or tokens_per_pass is None:
        return None
    experts = _experts(trace, memory)
    read: float = memory.target_weights + memory.target_cache
    if memory.experts and experts is not None:
        read -= memory.experts.weights * (1 - experts / memory.experts.count)
    return Limit(bandwidth_limit(read, trace.environment.bandwidth, tokens_per_pass), experts)


def _experts(trace: Trace, memory: Memory) -> float | None:
    """On average over the passes after the prefill."""
    if memory.experts is None:
        return None
    widths = [1 + len(round_.drafted) for round_ in trace.rounds[1:] or trace.rounds]
    of = memory.experts
    return statistics.fmean(experts_read(of.count, of.per_token, width) for width in widths)
