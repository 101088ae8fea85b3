"""A lane against the baseline: speed-up, its terms, and whether the outputs are the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from playground.metrics.lane import measure
from playground.trace import DraftToken, Round, TargetToken, Trace


@dataclass(frozen=True)
class FirstDifference:
    """The first token in which two outputs differ.

    `index`: its index. `token_ids`: both ids; None past an output's end, or where a server does not report it.
    `margin`: the gap between the baseline target's two highest logits there; near 0 it is a near-tie, which rounding in
    bf16 or fp16 can turn either way. None if the baseline had ended, or does not report it.
    """

    index: int
    token_ids: tuple[int | None, int | None]
    margin: float | None


# Two logits this close can swap when the pass is computed over more tokens at once. bf16 has 8 bits: logits between
# 16 and 32 are 0.125 apart. int8 rounds the input of each layer, which amplifies a difference: seen up to 1.25 in bf16.
NEAR_TIE = {
    "bfloat16": 0.5,
    "float16": 0.1,
    "float32": 0.001,
    "int8 weights, bfloat16": 2.0,
    "int8 weights, float32": 0.5,
    "activations": 0.001,  # the CPU engine's integers, whose sums are exact
}


def near_tie(margin: float, dtype: str) -> bool:
    """Return True if rounding can swap two tokens whose logits differ by `margin`. `dtype`: see `Environment`; for
    weights in other formats the dtype of the passes decides."""
    return margin <= NEAR_TIE.get(dtype, NEAR_TIE.get(dtype.split()[-1], 0.0))


def whole_run_ratio(baseline: Trace, other: Trace) -> float | None:
    """Return the ratio of tokens per second over two whole runs; None if one has no tokens, or their number is unknown.
    A stopped lane is compared over as many tokens as both have, which needs the time of each token. The speed-up of a
    comparison is `measured`'s, which compares the moments of lanes that took turns, and all their runs."""
    if (baseline.totals or other.totals) and "stopped" in (baseline.finish, other.finish):
        return None
    theirs, ours = (measure(trace).tokens_per_s for trace in compared(baseline, other))
    return ours / theirs if ours and theirs else None


@dataclass(frozen=True)
class Equation:
    """The terms of a speed-up: speedup = tokens_per_pass ÷ cost × prefill.

    `tokens_per_pass`: tokens per round of the lane, over those of the baseline (1 for standard decoding). `cost`: the
    mean time of the lane's rounds in plain passes, a plain pass being the mean round of the baseline; both leave out
    the prefill, which is the time of the first round beyond the others. `verify`, `draft` and `other` (commit, the loop
    itself) add up to the cost; None if a round does not report its times. `prefill`: the factor by which the prefill
    changes the speed-up. It takes the same time in both lanes, so a longer one brings them nearer to each other.
    """

    speedup: float
    tokens_per_pass: float
    cost: float
    verify: float | None
    draft: float | None
    other: float | None
    prefill: float


def equation(baseline: Trace, other: Trace, speedup: float | None = None, cost: float | None = None) -> Equation | None:
    """Return the terms of the speed-up; None if a lane has fewer than two rounds, because a single round includes the
    prefill, or if a server does not report its rounds.

    Args:
        speedup: that of all runs; None for that of these two. What it has of noise goes to the cost, where it was
            measured: the prefill is the same pass in lanes that took turns, and its factor follows from its time.
        cost: the mean round of lanes that took turns in plain passes of the same moments, where it is known.
    """
    lanes = compared(baseline, other)
    base, rounds = (lane.rounds for lane in lanes)
    theirs, ours = map(measure, lanes)
    if baseline.totals or other.totals or min(len(base), len(rounds)) < 2:
        return None
    if not (theirs.tokens and ours.tokens and theirs.total_s and ours.total_s):
        return None
    prefills = base_prefill_s, prefilled_s = prefill_s(base), prefill_s(rounds)
    plain_s = (theirs.total_s - base_prefill_s) / len(base)
    round_s = (ours.total_s - prefilled_s) / len(rounds)
    tokens_per_pass = (ours.tokens / len(rounds)) / (theirs.tokens / len(base))
    speedup = speedup or (ours.tokens / ours.total_s) / (theirs.tokens / theirs.total_s)
    if cost is None:
        shared = [sum(prefills) / 2] * 2 if other.schedule == "by turns" and not rounds[0].drafted else prefills
        prefill = (1 + shared[0] / (plain_s * len(base))) / (1 + shared[1] / (round_s * len(rounds)))
        cost = tokens_per_pass * prefill / speedup
    plain_s = round_s / cost
    verify: float | None = None
    draft: float | None = None
    rest: float | None = None
    if ours.verify_s is not None and ours.draft_s is not None:
        verify = (ours.verify_s - prefilled_s) / len(rounds) / plain_s
        draft = ours.draft_s / len(rounds) / plain_s
        rest = cost - verify - draft
    return Equation(
        speedup=speedup,
        tokens_per_pass=tokens_per_pass,
        cost=cost,
        verify=verify,
        draft=draft,
        other=rest,
        prefill=speedup * cost / tokens_per_pass,
    )


def prefill_s(rounds: Sequence[Round]) -> float:
    """Return the time of the first of two or more rounds beyond a mean later one; of its verify pass alone, where every
    round reports that."""
    first, *later = (round_.verify_s for round_ in rounds)
    known = [seconds for seconds in later if seconds is not None]
    if first is None or len(known) < len(later):
        return rounds[0].end_s - (rounds[-1].end_s - rounds[0].end_s) / len(later)
    return first - math.fsum(known) / len(later)


def compared(baseline: Trace, other: Trace) -> tuple[Trace, Trace]:
    """Return both lanes with the rounds that are compared: all or, if one was stopped, those up to as many tokens as
    both have."""
    if baseline.totals or other.totals or "stopped" not in (baseline.finish, other.finish):
        return baseline, other
    n = min(len(baseline.tokens), len(other.tokens))
    return _up_to(n, baseline), _up_to(n, other)


def compared_rounds(baseline: Trace, other: Trace) -> tuple[Sequence[Round], Sequence[Round]]:
    """Return the rounds that are compared; none where a server does not report the rounds of one lane."""
    if baseline.totals or other.totals:
        return (), ()
    base, ours = compared(baseline, other)
    return base.rounds, ours.rounds


def _up_to(n: int, trace: Trace) -> Trace:
    """Return the trace with as many rounds as its first n tokens take."""
    counts = itertools.accumulate((len(round_.tokens) for round_ in trace.rounds), initial=0)
    taken = next(i for i, count in enumerate(counts) if count >= n)
    return trace if taken == len(trace.rounds) else replace(trace, rounds=trace.rounds[:taken])


def first_difference(baseline: Trace, other: Trace) -> FirstDifference | None:
    """Return the first difference of two outputs; None if they are the same. Tokens are compared by id or, where a
    server does not report one, by text. Answers that arrived in pieces of an unknown number of tokens are compared as
    whole texts."""
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
