"""A lane against the baseline: speed-up, what it consists of, and whether the outputs are the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from playground.metrics.lane import measure, measure_rounds
from playground.trace import Comparison, DraftToken, Round, TargetToken, Trace


@dataclass(frozen=True)
class FirstDifference:
    """The first token in which two outputs differ: its index, both token ids (None past an output's end, or where it is
    not reported), and the gap between the baseline target's two highest logits there. A gap near 0 is a near-tie, which
    rounding in bf16 or fp16 can turn either way. None if the baseline had ended, or does not report it."""

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


def differences(comparison: Comparison) -> list[Difference]:
    """Every other lane against the baseline."""
    return [compare(comparison.standard, other) for other in comparison.others]


def compare(baseline: Trace, other: Trace) -> Difference:
    """`other` against `baseline`."""
    difference = first_difference(baseline, other)
    return Difference(
        baseline=baseline.lane.name,
        lane=other.lane.name,
        speedup=speedup(baseline, other),
        identical=difference is None,
        first_difference=difference,
    )


def speedup(baseline: Trace, other: Trace) -> float | None:
    """The ratio of tokens per second; None if one of them has no tokens, or their number is unknown. A stopped lane is
    compared over as many tokens as both have, which needs to know when each arrived."""
    if baseline.totals is other.totals is None:
        measured = [measure_rounds(rounds) for rounds in compared_rounds(baseline, other)]
    elif "stopped" in (baseline.finish, other.finish):
        return None
    else:
        measured = [measure(trace) for trace in (baseline, other)]
    theirs, ours = (it.tokens_per_s for it in measured)
    return ours / theirs if ours and theirs else None


@dataclass(frozen=True)
class Equation:
    """A speed-up taken apart: speedup = tokens_per_pass / cost.

    `tokens_per_pass`: tokens per round of the lane, over those of the baseline (1 for standard decoding). `cost`: the
    mean time of the lane's rounds in plain passes, a plain pass being the mean round of the baseline. `verify`, `draft`
    and `other` (commit, the loop itself) add up to the cost; None if a round does not report its times. The
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
    plain_s = theirs.total_s / len(baseline)
    tokens_per_pass = (ours.tokens / len(other)) / (theirs.tokens / len(baseline))
    cost = ours.total_s / len(other) / plain_s
    verify: float | None = None
    draft: float | None = None
    rest: float | None = None
    if ours.verify_s is not None and ours.draft_s is not None:
        verify = ours.verify_s / len(other) / plain_s
        draft = ours.draft_s / len(other) / plain_s
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
    have. None where a server does not report those of one lane."""
    if baseline.totals or other.totals:
        return (), ()
    if "stopped" not in (baseline.finish, other.finish):
        return baseline.rounds, other.rounds
    n = min(len(baseline.tokens), len(other.tokens))
    return _up_to(n, baseline.rounds), _up_to(n, other.rounds)


def _up_to(n: int, rounds: Sequence[Round]) -> Sequence[Round]:
    """The first rounds, as many as n tokens take."""
    counts = itertools.accumulate((len(round_.tokens) for round_ in rounds), initial=0)
    return rounds[: next(i for i, count in enumerate(counts) if count >= n)]


def first_difference(baseline: Trace, other: Trace) -> FirstDifference | None:
    """Tokens are compared by id or, where a server does not report one, by text. Of an answer that arrived in pieces of
    unknown many tokens, the text as a whole is compared."""
    if (baseline.totals or other.totals) and baseline.text == other.text:
        return None
    a, b = baseline.tokens, other.tokens
    index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if not _same(x, y)), min(len(a), len(b)))
    if index == len(a) == len(b):
        return None
    at = lambda tokens: tokens[index].id if index < len(tokens) else None  # noqa: E731
    return FirstDifference(index, (at(a), at(b)), a[index].margin if index < len(a) else None)


def _same(a: DraftToken | TargetToken, b: DraftToken | TargetToken) -> bool:
    return a.text == b.text if None in (a.id, b.id) else a.id == b.id
