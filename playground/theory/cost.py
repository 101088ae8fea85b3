"""What a token costs."""

from __future__ import annotations

from playground import metrics
from playground.trace import Trace


def price_per_million(hourly_rate: float, tokens_per_s: float) -> float:
    """The price of a million tokens on a machine that costs `hourly_rate` and does nothing else, in its currency."""
    return hourly_rate / 3600 / tokens_per_s * 1e6


def price_of(trace: Trace, hourly_rate: float) -> float | None:
    """The same at the speed of a lane, prefill included; None if it has no tokens."""
    speed = metrics.measure(trace).tokens_per_s
    return price_per_million(hourly_rate, speed) if speed else None


def joules_per_token(trace: Trace) -> float | None:
    """The device's energy during the run, per new token; other programs on it count, too. None if it was not measured,
    or nothing was decoded."""
    tokens = metrics.measure(trace).tokens
    return trace.joules / tokens if trace.joules and tokens else None
