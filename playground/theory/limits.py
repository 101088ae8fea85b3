"""What the memory's bandwidth allows."""

from __future__ import annotations

from playground import metrics
from playground.trace import Trace


def bandwidth_limit(weights: int, cache: int, bytes_per_s: float, tokens_per_pass: float = 1.0) -> float:
    """The most tokens per second that a lane can decode where each pass reads the weights and the KV cache once.

    Args:
        weights, cache: bytes that a pass reads.
        bytes_per_s: of the device's memory, measured by a copy.
        tokens_per_pass: mean accepted length.
    """
    return tokens_per_pass * bytes_per_s / (weights + cache)


def limit_of(trace: Trace) -> float | None:
    """The same for a lane at its own tokens per pass, with the weights and caches that it held at its end; drafting
    reads more, so it cannot be reached by a drafter with weights. None where the bandwidth, the memory or a token is
    missing."""
    tokens_per_pass = metrics.measure(trace).mean_accepted_length
    if trace.environment.bandwidth is None or trace.memory is None or tokens_per_pass is None:
        return None
    memory = trace.memory
    return bandwidth_limit(memory.target_weights, memory.target_cache, trace.environment.bandwidth, tokens_per_pass)
