"""Figures from a trace. Every formula stands here once, with its definition.

Nothing here measures: the clock was read by the worker that decoded, and stands in the rounds.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from playground.trace import DraftToken, Round, Trace


@dataclass(frozen=True)
class Metrics:
    """The figures of one lane.

    Attributes:
        tokens: new tokens in the output.
        ttft_s: time to first token, seconds from handing over the prompt's token ids to the end of the first round.
        total_s: seconds to the end of the last round.
        tokens_per_s: tokens / total_s, the prompt's prefill included.
        target_passes: passes of the target, which is the number of rounds.
        passes_saved: tokens - target_passes; standard decoding needs one pass a token.
        drafted, accepted: draft tokens proposed and kept.
        acceptance_rate: accepted / drafted over the whole run (tokens drafted behind a rejection, and a tree's other
            branches, count as drafted); None where nothing was drafted.
        mean_accepted_length: tokens / target_passes, the target's own token counted, as Spec-Bench does.
        draft_s, verify_s: seconds spent drafting and in the target, summed over the rounds.
    """

    tokens: int
    ttft_s: float | None
    total_s: float
    tokens_per_s: float | None
    target_passes: int
    passes_saved: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    draft_s: float
    verify_s: float


@dataclass(frozen=True)
class FirstDifference:
    """Where two outputs part: the index of the first token that differs, both ids there (None past an output's end),
    and the gap between the baseline target's two highest logits at that place. A gap near 0 is a near-tie, which
    rounding in bf16 or fp16 can turn either way; None where the baseline had already ended."""

    index: int
    token_ids: tuple[int | None, int | None]
    margin: float | None


@dataclass(frozen=True)
class Difference:
    """A lane against the baseline. `speedup` is the ratio of their tokens_per_s, where one was stopped as far as both
    go: above 1, the lane is faster."""

    baseline: str
    lane: str
    speedup: float | None
    identical: bool
    first_difference: FirstDifference | None


def measure(trace: Trace) -> Metrics:
    return measure_rounds(trace.rounds)


def measure_rounds(rounds: Sequence[Round]) -> Metrics:
    """The figures of the rounds so far; of a lane once it has ended."""
    tokens = sum(len(round_.tokens) for round_ in rounds)
    drafted = sum(len(round_.drafted) for round_ in rounds)
    accepted = sum(len(round_.accepted) for round_ in rounds)
    total_s = rounds[-1].end_s if rounds else 0.0
    return Metrics(
        tokens=tokens,
        ttft_s=rounds[0].end_s if rounds else None,
        total_s=total_s,
        tokens_per_s=tokens / total_s if total_s else None,
        target_passes=len(rounds),
        passes_saved=tokens - len(rounds),
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=tokens / len(rounds) if rounds else None,
        draft_s=sum(round_.draft_s for round_ in rounds),
        verify_s=sum(round_.verify_s for round_ in rounds),
    )


def compare(baseline: Trace, other: Trace) -> Difference:
    """`other` against `baseline`."""
    theirs, ours = (measure_rounds(rounds).tokens_per_s for rounds in compared_rounds(baseline, other))
    difference = first_difference(baseline, other)
    return Difference(
        baseline=baseline.lane.name,
        lane=other.lane.name,
        speedup=ours / theirs if ours and theirs else None,
        identical=difference is None,
        first_difference=difference,
    )


def compared_rounds(baseline: Trace, other: Trace) -> tuple[Sequence[Round], Sequence[Round]]:
    """Those of each lane that compare: all, or where one was stopped those up to as many tokens as both have."""
    if "stopped" not in (baseline.finish, other.finish):
        return baseline.rounds, other.rounds
    n = min(len(baseline.tokens), len(other.tokens))
    return _up_to(n, baseline.rounds), _up_to(n, other.rounds)


def _up_to(n: int, rounds: Sequence[Round]) -> Sequence[Round]:
    """The first rounds, as many as it takes to have n tokens."""
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
class PlaceAcceptance:
    """Acceptance at one place in the draft (1 is the first). The tokens of a tree that stand equally deep share
    a place, and one of them at most is accepted.

    `drafted`: rounds that drafted this place. `reached`: those in which a token was accepted at every place before it,
    and the draft went on behind it. `accepted`: those in which one was accepted here. accepted / reached is the
    conditional acceptance, accepted / drafted the unconditional one.
    """

    place: int
    drafted: int
    reached: int
    accepted: int


def acceptance_by_place(rounds: Sequence[Round]) -> list[PlaceAcceptance]:
    drafted, reached, accepted = Counter(), Counter(), Counter()
    for round_ in rounds:
        decisions = list(zip(places(round_.drafted), (token.decision for token in round_.drafted), strict=True))
        drafted.update({place for place, _ in decisions})
        reached.update({place for place, decision in decisions if decision != "unused"})
        accepted.update({place for place, decision in decisions if decision == "accepted"})
    return [PlaceAcceptance(place, drafted[place], reached[place], accepted[place]) for place in sorted(drafted)]


def places(drafted: Sequence[DraftToken]) -> list[int]:
    """The place of each token of a draft: its own, or how deep in a tree it stands. 1 is the first."""
    found: list[int] = []
    for i, token in enumerate(drafted):
        parent = i - 1 if token.parent is None else token.parent
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


@dataclass(frozen=True)
class Ranks:
    """Where the target's own token stood among the drafter's candidates, over the rounds that ended in a rejection and
    whose drafter scored candidates: would a wider draft have held it? `best`: it stood first, and something else had
    been drawn."""

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
    """The second at which each output token existed. All tokens of one round share its end."""
    return [round_.end_s for round_ in rounds for _ in round_.tokens]


def inter_token_latencies(rounds: Sequence[Round]) -> list[float]:
    """Seconds between each output token and the one before it. Tokens of one round arrive together, so all but the
    first of a round have 0."""
    times = token_times(rounds)
    return [b - a for a, b in itertools.pairwise(times)]


def unsteadiness(rounds: Sequence[Round]) -> float | None:
    """How unevenly the device worked: the 90th percentile of the target's passes ÷ the 10th, each beside the median of
    those over as many tokens, prefill left out. None for fewer than ten passes of sizes that came five times or more,
    or where a trace holds no durations. About 1 where the lane had the device to itself; a longer text explains a
    little of it."""
    by_size: dict[int, list[float]] = {}
    for round_ in rounds[1:]:
        by_size.setdefault(len(round_.drafted), []).append(round_.verify_s)
    often = [passes for passes in by_size.values() if len(passes) >= 5 and min(passes) > 0]
    passes = [seconds / statistics.median(alike) for alike in often for seconds in alike]
    if len(passes) < 10:
        return None
    deciles = statistics.quantiles(passes, n=10)
    return deciles[-1] / deciles[0]
