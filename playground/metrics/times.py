"""Times between tokens, the cost of a plain pass, and how noisy the timing was."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from playground.trace import Round

# The p90 ÷ p10 of same-size passes from which timing counts as noisy.
UNSTEADY = 2.0


def token_times(rounds: Sequence[Round]) -> list[float]:
    """The second at which each output token existed. All tokens of a round share its end."""
    return [round_.end_s for round_ in rounds for _ in round_.tokens]


def inter_token_latencies(rounds: Sequence[Round]) -> list[float]:
    """Seconds between each output token and the one before it. The tokens of a round arrive together, so all but the
    first have 0."""
    times = token_times(rounds)
    return [b - a for a, b in itertools.pairwise(times)]


@dataclass(frozen=True)
class Gaps:
    """The inter-token latencies of a lane: how many, how many of them are 0 because the token arrived together with the
    one before, and their 50th, 95th and 99th percentiles in seconds (linear between the two nearest). With fewer than
    100 gaps the last is little more than the longest."""

    n: int
    together: int
    p50_s: float
    p95_s: float
    p99_s: float


def gaps(rounds: Sequence[Round]) -> Gaps | None:
    """None for fewer than two tokens."""
    found = inter_token_latencies(rounds)
    if not found:
        return None
    p50, p95, p99 = np.percentile(found, [50, 95, 99]).tolist()
    return Gaps(len(found), found.count(0.0), p50, p95, p99)


def plain_pass_s(rounds: Sequence[Round]) -> float | None:
    """Seconds of the median plain pass: a round that drafted nothing, from its start to its end. The first round, which
    includes the prefill, is left out. None if there is no such round."""
    found = [round_.end_s - round_.start_s for round_ in rounds[1:] if not round_.drafted]
    return statistics.median(found) if found else None


def unsteadiness(rounds: Sequence[Round]) -> float | None:
    """How noisy the timing was: the 90th percentile of the verify passes ÷ the 10th, after dividing each pass by the
    median of the passes over as many tokens. The prefill is left out. About 1 on a quiet device; a growing sequence
    explains a little of it. None for fewer than ten passes of widths that occur five times or more, or if a round does
    not report its time."""
    by_width: dict[int, list[float]] = {}
    for round_ in rounds[1:]:
        by_width.setdefault(len(round_.drafted), []).append(round_.verify_s or 0.0)
    often = [passes for passes in by_width.values() if len(passes) >= 5 and min(passes) > 0]
    passes = [seconds / statistics.median(alike) for alike in often for seconds in alike]
    if len(passes) < 10:
        return None
    deciles = statistics.quantiles(passes, n=10)
    return deciles[-1] / deciles[0]


def unsteady(runs: Iterable[Sequence[Round]]) -> bool:
    """Whether the timing of one of them counts as noisy."""
    return any((unsteadiness(rounds) or 0.0) >= UNSTEADY for rounds in runs)
