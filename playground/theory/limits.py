"""What the memory's bandwidth allows."""

from __future__ import annotations


def bandwidth_limit(weights: int, cache: int, bytes_per_s: float, tokens_per_pass: float = 1.0) -> float:
    """The most tokens per second that a lane can decode where each pass reads the weights and the KV cache once.

    Args:
        weights, cache: bytes that a pass reads.
        bytes_per_s: of the device's memory, measured by a copy.
        tokens_per_pass: mean accepted length.
    """
    return tokens_per_pass * bytes_per_s / (weights + cache)
