"""The figures of one lane: tokens, passes, acceptance, times, and how noisy the timing was."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from playground.trace import DraftToken, Round, Totals, Trace, once

T = TypeVar("T")
# Timing counts as noisy from this p90 ÷ p10 of passes of the same width on.
UNSTEADY = 2.0


def inter_token_latencies(rounds: Sequence[Round]) -> list[float]:
    """Return seconds between each output token and the one before it. The tokens of a round arrive together, so all but
    the first have 0."""
    return [b - a for a, b in itertools.pairwise(round_.end_s for round_ in rounds for _ in round_.tokens)]


@dataclass(frozen=True)
class Gaps:
    """The inter-token latencies of a lane: `n` of them, `together` of which are 0 because the token arrived with the
    one before; and their 50th, 95th and 99th percentiles in seconds (linear between the two nearest). With fewer than
    100 gaps the last is little more than the longest."""

    n: int
    together: int
    p50_s: float
    p95_s: float
    p99_s: float


def gaps(rounds: Sequence[Round]) -> Gaps | None:
    """Summarise the inter-token latencies; None for fewer than two tokens."""
    found = inter_token_latencies(rounds)
    if not found:
        return None
    p50, p95, p99 = np.percentile(found, [50, 95, 99]).tolist()
    return Gaps(len(found), found.count(0.0), p50, p95, p99)


def plain_pass_s(rounds: Sequence[Round]) -> float | None:
    """Return seconds of the median plain pass: a round that drafted nothing, from its start to its end. The first
    round, which includes the prefill, is left out. None if there is no such round."""
    found = [round_.end_s - round_.start_s for round_ in rounds[1:] if not round_.drafted]
    return statistics.median(found) if found else None


@once
def unsteadiness(trace: Trace) -> float | None:
    """Return how noisy the timing was: the 90th percentile of the verify passes ÷ the 10th, after dividing each pass by
    the median of the passes over as many tokens. The prefill is left out. It is about 1 on a quiet device; a growing
    sequence explains a little of it. None for fewer than ten passes of widths that occur five times or more, or if a
    round does not report its time."""
    by_width: dict[int, list[float]] = {}
    for round_ in trace.rounds[1:]:
        by_width.setdefault(len(round_.drafted), []).append(round_.verify_s or 0.0)
    often = [passes for passes in by_width.values() if len(passes) >= 5 and min(passes) > 0]
    passes = [seconds / middle for alike in often for middle in [statistics.median(alike)] for seconds in alike]
    if len(passes) < 10:
        return None
    deciles = statistics.quantiles(passes, n=10)
    return deciles[-1] / deciles[0]


def unsteady(runs: Iterable[Trace]) -> bool:
    """Return True if the timing of any of the runs counts as noisy."""
    return any((unsteadiness(trace) or 0.0) >= UNSTEADY for trace in runs)


@dataclass(frozen=True)
class Metrics:
    """The figures of one lane. Counts are None where a server does not report them.

    Attributes:
        tokens: new tokens in the output.
        ttft_s: time to first token, in seconds from handing over the prompt's token ids to the end of the first round.
        total_s: seconds of decoding to the end of the last round, prefill included. What the trace alone needs
            (`annotate_s`) is not in it, here or in any figure that is made of times.
        tokens_per_s: tokens / total_s.
        verify_passes: rounds, each of which verifies a draft (of no tokens, in standard decoding) in one target pass.
        target_passes: forward passes of the target. More than verify_passes only if a recurrent target had to be fed
            again after a rejection.
        passes_saved: tokens - target_passes; standard decoding needs one pass a token.
        drafted, accepted: draft tokens proposed and accepted.
        depth: the most draft tokens that could have been accepted, summed: of a tree, its longest branch.
        acceptance_rate: accepted / drafted over the whole run. Tokens drafted after a rejection, and a tree's other
            branches, count as drafted. None if nothing was drafted.
        mean_accepted_length: tokens / verify_passes, the target's own token included, as in Spec-Bench.
        draft_s, verify_s, commit_s, annotate_s: the rounds' durations, summed; None if a round does not report it.
        mask_s: of verify_s, what the request's grammar took; None without one.
        forced: drafted tokens that the grammar forced.
    """

    tokens: int | None
    ttft_s: float | None
    total_s: float
    tokens_per_s: float | None
    verify_passes: int | None
    target_passes: int | None
    passes_saved: int | None
    drafted: int | None
    accepted: int | None
    depth: int | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    draft_s: float | None
    verify_s: float | None
    commit_s: float | None
    annotate_s: float | None
    mask_s: float | None
    forced: int


@once
def measure(trace: Trace) -> Metrics:
    """Return the figures of a trace."""
    found = measure_rounds(trace.rounds)
    return found if trace.totals is None else _counted(found, trace.totals)


def measure_rounds(rounds: Sequence[Round]) -> Metrics:
    """Return the figures of the rounds so far, or of a lane that has ended."""
    tokens = sum(len(round_.tokens) for round_ in rounds)
    drafted = sum(len(round_.drafted) for round_ in rounds)
    accepted = sum(len(round_.accepted) for round_ in rounds)
    passes = sum(round_.passes for round_ in rounds)
    total_s = rounds[-1].end_s if rounds else 0.0
    return Metrics(
        tokens=tokens,
        ttft_s=rounds[0].end_s if rounds else None,
        total_s=total_s,
        tokens_per_s=tokens / total_s if total_s else None,
        verify_passes=len(rounds),
        target_passes=passes,
        passes_saved=tokens - passes,
        drafted=drafted,
        accepted=accepted,
        depth=sum(max(positions(round_.drafted), default=0) for round_ in rounds),
        acceptance_rate=acceptance_rate(accepted, drafted),
        mean_accepted_length=mean_accepted_length(tokens, len(rounds)),
        draft_s=_sum(round_.draft_s for round_ in rounds),
        verify_s=_sum(round_.verify_s for round_ in rounds),
        commit_s=_sum(round_.commit_s for round_ in rounds),
        annotate_s=_sum(round_.annotate_s for round_ in rounds),
        mask_s=_sum(round_.mask_s for round_ in rounds),
        forced=sum(token.forced for round_ in rounds for token in round_.drafted),
    )


def positions(drafted: Sequence[DraftToken]) -> list[int]:
    """Return the position of each token in its draft, or its depth in a tree. 1 is the first."""
    found: list[int] = []
    for i, token in enumerate(drafted):
        parent = i - 1 if token.parent is None else token.parent
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def _counted(found: Metrics, totals: Totals) -> Metrics:
    """Take the times as they arrived, and the counts from the server."""
    tokens, passes = totals.tokens, totals.passes
    return replace(
        found,
        tokens=tokens,
        tokens_per_s=tokens / found.total_s if tokens and found.total_s else None,
        verify_passes=passes,
        target_passes=passes,
        passes_saved=None if tokens is None or passes is None else tokens - passes,
        drafted=totals.drafted,
        accepted=totals.accepted,
        depth=None,
        acceptance_rate=acceptance_rate(totals.accepted, totals.drafted),
        mean_accepted_length=mean_accepted_length(tokens, passes),
    )


def acceptance_rate(accepted: int | None, drafted: int | None) -> float | None:
    """Return accepted / drafted; None if nothing was drafted, or a count is unknown."""
    return accepted / drafted if drafted and accepted is not None else None


def mean_accepted_length(tokens: int | None, verify_passes: int | None) -> float | None:
    """Return tokens / verify_passes; None without a pass, or if a count is unknown."""
    return tokens / verify_passes if verify_passes and tokens is not None else None


def accepted_up_to(agreed: np.ndarray) -> list[float]:
    """Return the share of drafts accepted up to each position. `agreed`: (drafts, positions), whether each drafted
    token is the target's choice."""
    return np.cumprod(agreed, axis=1).mean(axis=0).tolist()


def expected_length(accepted: Sequence[float]) -> float:
    """Return the mean accepted length that follows from the share of drafts accepted up to each position: the target's
    own token and, for each position, its share."""
    return 1 + sum(accepted)


def added(kind: type[T], parts: Sequence[T], **same: Any) -> T:
    """Add up dataclasses of numbers, field by field. `same`: the fields that are not added, with their values."""
    names = [field.name for field in fields(kind) if field.name not in same]  # type: ignore[arg-type]
    return kind(**same, **{name: sum(getattr(each, name) for each in parts) for name in names})


def _sum(durations: Iterable[float | None]) -> float | None:
    total = 0.0
    for duration in durations:
        if duration is None:
            return None
        total += duration
    return total
