"""Figures from a trace. Every formula stands here once, with its definition.

Nothing here measures: the clock was read by the worker that decoded, and its readings are in the rounds.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from playground.trace import Comparison, DraftToken, Round, Trace


@dataclass(frozen=True)
class Metrics:
    """The figures of one lane.

    Attributes:
        tokens: new tokens in the output.
        ttft_s: time to first token, in seconds from handing over the prompt's token ids to the end of the first round.
        total_s: seconds to the end of the last round.
        tokens_per_s: tokens / total_s, prefill included.
        verify_passes: rounds, each of which verifies a draft (of no tokens, in standard decoding) in one target pass.
        target_passes: forward passes of the target. More than verify_passes only if a recurrent target had to be fed
            again after a rejection.
        passes_saved: tokens - target_passes; standard decoding needs one pass a token.
        drafted, accepted: draft tokens proposed and accepted.
        acceptance_rate: accepted / drafted over the whole run. Tokens drafted after a rejection, and a tree's other
            branches, count as drafted. None if nothing was drafted.
        mean_accepted_length: tokens / verify_passes, the target's own token included, as in Spec-Bench.
        draft_s, verify_s, commit_s, annotate_s: the rounds' durations, summed; None if a round does not report it.
    """

    tokens: int
    ttft_s: float | None
    total_s: float
    tokens_per_s: float | None
    verify_passes: int
    target_passes: int
    passes_saved: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    draft_s: float | None
    verify_s: float | None
    commit_s: float | None
    annotate_s: float | None


@dataclass(frozen=True)
class FirstDifference:
    """The first token in which two outputs differ: its index, both token ids (None past an output's end), and the gap
    between the baseline target's two highest logits there. A gap near 0 is a near-tie, which rounding in bf16 or fp16
    can turn either way. None if the baseline had ended, or does not report it."""

    index: int
    token_ids: tuple[int | None, int | None]
    margin: float | None


@dataclass(frozen=True)
class Difference:
    """A lane against the baseline. `speedup`: the ratio of their tokens_per_s; if a lane was stopped, over as many
    tokens as both have. Above 1 the lane is faster."""

    baseline: str
    lane: str
    speedup: float | None
    identical: bool
    first_difference: FirstDifference | None


def measure(trace: Trace) -> Metrics:
    return measure_rounds(trace.rounds)


def measure_rounds(rounds: Sequence[Round]) -> Metrics:
    """The figures of the rounds so far, or of a lane that has ended."""
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
        acceptance_rate=acceptance_rate(accepted, drafted),
        mean_accepted_length=mean_accepted_length(tokens, len(rounds)),
        draft_s=_sum(round_.draft_s for round_ in rounds),
        verify_s=_sum(round_.verify_s for round_ in rounds),
        commit_s=_sum(round_.commit_s for round_ in rounds),
        annotate_s=_sum(round_.annotate_s for round_ in rounds),
    )


def acceptance_rate(accepted: int, drafted: int) -> float | None:
    return accepted / drafted if drafted else None


def mean_accepted_length(tokens: int, verify_passes: int) -> float | None:
    return tokens / verify_passes if verify_passes else None


def accepted_up_to(agreed: np.ndarray) -> list[float]:
    """The share of drafts accepted up to each position. `agreed`: (drafts, positions), whether each drafted token is
    the target's choice."""
    return np.cumprod(agreed, axis=1).mean(axis=0).tolist()


def expected_length(accepted: Sequence[float]) -> float:
    """The mean accepted length that follows from the share of drafts accepted up to each position: the target's own
    token and, for each position, its share."""
    return 1 + sum(accepted)


def _sum(durations: Iterable[float | None]) -> float | None:
    total = 0.0
    for duration in durations:
        if duration is None:
            return None
        total += duration
    return total


def differences(comparison: Comparison) -> list[Difference]:
    """Every other lane against the baseline."""
    return [compare(comparison.standard, other) for other in comparison.others]


def compare(baseline: Trace, other: Trace) -> Difference:
    """`other` against `baseline`."""
    difference = first_difference(baseline, other)
    return Difference(
        baseline=baseline.lane.name,
        lane=other.lane.name,
        speedup=speedup(*compared_rounds(baseline, other)),
        identical=difference is None,
        first_difference=difference,
    )


def speedup(baseline: Sequence[Round], other: Sequence[Round]) -> float | None:
    """The ratio of tokens per second; None if one of them has no tokens."""
    theirs, ours = (measure_rounds(rounds).tokens_per_s for rounds in (baseline, other))
    return ours / theirs if ours and theirs else None


@dataclass(frozen=True)
class Repeated:
    """The speed-up of a lane over several runs of the whole comparison: how many, the median, the lowest and the
    highest."""

    runs: int
    median: float
    low: float
    high: float


def repeated(comparison: Comparison, other: Trace) -> Repeated | None:
    """None if the comparison was not repeated, or a lane has no tokens."""
    base = comparison.lanes.index(comparison.standard)
    at = comparison.lanes.index(other)
    pairs = [(lanes[base], lanes[at]) for lanes in (comparison.lanes, *comparison.repeats)]
    speedups = [ratio for pair in pairs if (ratio := speedup(*compared_rounds(*pair))) is not None]
    if len(pairs) < 2 or len(speedups) < len(pairs):
        return None
    return Repeated(len(pairs), statistics.median(speedups), min(speedups), max(speedups))


@dataclass(frozen=True)
class Equation:
    """A speed-up taken apart: speedup = tokens_per_pass / cost.

    `tokens_per_pass`: tokens per round of the lane, over those of the baseline (1 for standard decoding). `cost`: the
    mean time of the lane's rounds in plain passes, a plain pass being the mean round of the baseline. `verify`, `draft`
    and `other` (commit, annotation, the loop itself) add up to the cost; None if a round does not report its times. The
    prefill is part of both lanes' first round.
    """

    speedup: float
    tokens_per_pass: float
    cost: float
    verify: float | None
    draft: float | None
    other: float | None


def equation(baseline: Sequence[Round], other: Sequence[Round]) -> Equation | None:
    """None if one of them has no tokens."""
    theirs, ours = measure_rounds(baseline), measure_rounds(other)
    if not (theirs.tokens and ours.tokens and theirs.total_s and ours.total_s):
        return None
    plain_s = theirs.total_s / theirs.verify_passes
    tokens_per_pass = (ours.tokens / ours.verify_passes) / (theirs.tokens / theirs.verify_passes)
    cost = ours.total_s / ours.verify_passes / plain_s
    verify: float | None = None
    draft: float | None = None
    rest: float | None = None
    if ours.verify_s is not None and ours.draft_s is not None:
        verify = ours.verify_s / ours.verify_passes / plain_s
        draft = ours.draft_s / ours.verify_passes / plain_s
        rest = cost - verify - draft
    return Equation(
        speedup=tokens_per_pass / cost,
        tokens_per_pass=tokens_per_pass,
        cost=cost,
        verify=verify,
        draft=draft,
        other=rest,
    )


def compared_rounds(baseline: Trace, other: Trace) -> tuple[Sequence[Round], Sequence[Round]]:
    """The rounds of each lane that are compared: all or, if one was stopped, those up to as many tokens as both
    have."""
    if "stopped" not in (baseline.finish, other.finish):
        return baseline.rounds, other.rounds
    n = min(len(baseline.tokens), len(other.tokens))
    return _up_to(n, baseline.rounds), _up_to(n, other.rounds)


def _up_to(n: int, rounds: Sequence[Round]) -> Sequence[Round]:
    """The first rounds, as many as n tokens take."""
    counts = itertools.accumulate((len(round_.tokens) for round_ in rounds), initial=0)
    return rounds[: next(i for i, count in enumerate(counts) if count >= n)]


def first_difference(baseline: Trace, other: Trace) -> FirstDifference | None:
    a, b = baseline.token_ids, other.token_ids
    if a == b:
        return None
    index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    at = lambda ids: ids[index] if index < len(ids) else None  # noqa: E731
    margin = baseline.tokens[index].margin if index < len(a) else None
    return FirstDifference(index=index, token_ids=(at(a), at(b)), margin=margin)


@dataclass(frozen=True)
class PositionAcceptance:
    """Acceptance at one position of the draft (1 is the first). Tokens of a tree that are equally deep share a
    position, and at most one of them is accepted.

    `drafted`: rounds that drafted this position. `reached`: rounds that accepted a token at every position before it
    and drafted on from there. `accepted`: rounds that accepted a token here. accepted / reached is the conditional
    acceptance, accepted / drafted the unconditional one.
    """

    position: int
    drafted: int
    reached: int
    accepted: int


def acceptance_by_position(rounds: Sequence[Round]) -> list[PositionAcceptance]:
    drafted: Counter[int] = Counter()
    reached: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for round_ in rounds:
        decisions = list(zip(positions(round_.drafted), (token.decision for token in round_.drafted), strict=True))
        drafted.update({at for at, _ in decisions})
        reached.update({at for at, decision in decisions if decision != "unverified"})
        accepted.update({at for at, decision in decisions if decision == "accepted"})
    return [PositionAcceptance(at, drafted[at], reached[at], accepted[at]) for at in sorted(drafted)]


def positions(drafted: Sequence[DraftToken]) -> list[int]:
    """The position of each token in its draft, or its depth in a tree. 1 is the first."""
    found: list[int] = []
    for i, token in enumerate(drafted):
        parent = i - 1 if token.parent is None else token.parent
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


@dataclass(frozen=True)
class Ranks:
    """The rank of the target's own token among the drafter's candidates, over the rounds that ended in a rejection and
    whose drafter scores candidates: would a wider draft have contained it? `best`: it ranked first, but another token
    was sampled."""

    rejections: int
    best: int
    second: int
    third_to_eighth: int
    further: int
    never: int


def ranks(rounds: Sequence[Round]) -> Ranks:
    found = [r.target.rank for r in rounds if r.target and r.target.rank is not None]
    within = lambda low, high: sum(low <= rank <= high for rank in found)  # noqa: E731
    return Ranks(
        rejections=len(found),
        best=within(1, 1),
        second=within(2, 2),
        third_to_eighth=within(3, 8),
        further=sum(rank > 8 for rank in found),
        never=within(0, 0),
    )


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


@dataclass(frozen=True)
class Spread:
    """The median of some values, and their quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """`values`: at least one."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return Spread(median, low, high)


LEAST = 8  # requests that a bootstrap interval takes


@dataclass(frozen=True)
class Pooled:
    """Several requests through two lanes, taken together. `speedup`: the ratio of the pooled time per token, so that
    long answers count more. `interval`: its 95 % bootstrap interval over requests; None for fewer than LEAST."""

    speedup: float
    interval: tuple[float, float] | None


def pooled(
    base_s: Sequence[float], base_tokens: Sequence[int], seconds: Sequence[float], tokens: Sequence[int]
) -> Pooled:
    """`base_s[i]` and `base_tokens[i]` are those of the baseline on request i, `seconds[i]` and `tokens[i]` those of
    the other lane."""
    columns = [np.array(column, dtype=float) for column in (base_s, base_tokens, seconds, tokens)]
    overall = _pooled_speedup(*columns)
    if len(base_s) < LEAST:
        return Pooled(overall, None)
    from scipy.stats import bootstrap  # takes a second to import

    ends = bootstrap(
        columns, _pooled_speedup, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    ).confidence_interval
    return Pooled(overall, (float(ends.low), float(ends.high)))


def _pooled_speedup(base_s: np.ndarray, base_tokens: np.ndarray, seconds: np.ndarray, tokens: np.ndarray) -> float:
    return float((base_s.sum() / base_tokens.sum()) / (seconds.sum() / tokens.sum()))
