"""Why this speed-up: from the tokens per pass of the drafting rounds down to what was measured.

Each step takes one cost into account and keeps the steps before, so the last one is the measured speed-up to the digit.
Terms are those of `metrics.equation`, which the page shows beside the speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from playground import metrics
from playground.trace import Round, Trace

LEAST_PASSES = 5  # of each lane, whose times are compared


@dataclass(frozen=True)
class Attribution:
    """The speed-up after each step:

    `ideal`: every round drafts, and a round costs one plain pass: tokens per drafting round. `all_rounds`: rounds
    without a draft count, too: the equation's tokens per pass. `verified`: verify passes cost what they do. `drafted`:
    so does drafting. `decoding`: so does everything else in a round (commit, the loop itself). `measured`: so does the
    prefill, which a lane of fewer rounds spreads over fewer.

    `verify`, `draft`, `other`, `prefill`: what the steps cost, in plain passes a round beyond the first plain pass; a
    plain pass is the mean round of the baseline, prefill included. `wider`: the 95 % interval of `verify`, by Welch's
    test of the lanes' passes; None for few passes. `idle`: the share of rounds without a draft. Where a server does not
    report the split of a round, `verify` is the whole cost, and `split` is False.
    """

    ideal: float
    all_rounds: float
    verified: float
    drafted: float
    decoding: float
    measured: float
    verify: float
    draft: float
    other: float
    prefill: float
    wider: tuple[float, float] | None
    idle: float
    split: bool

    @property
    def cost(self) -> float:
        """Plain passes that a round takes."""
        return 1 + self.verify + self.draft + self.other + self.prefill


def attribute(baseline: Trace, other: Trace) -> Attribution | None:
    """None if a lane has fewer than two rounds, or nothing was drafted after the first."""
    base, ours = metrics.compared_rounds(baseline, other)
    whole, plain = metrics.equation(base, ours), metrics.equation(base, base)
    if whole is None or plain is None or min(len(base), len(ours)) < 2 or not any(it.drafted for it in ours[1:]):
        return None
    drafting = [round_ for round_ in ours if round_.drafted]
    ideal = _tokens(drafting) / len(drafting) / (_tokens(base) / len(base))
    plain_s = metrics.measure_rounds(base).total_s / len(base)
    prefill = (_prefill_s(ours) / len(ours) - _prefill_s(base) / len(base)) / plain_s
    verify, draft, other_, split = whole.cost - 1 - prefill, 0.0, 0.0, False
    if None not in (whole.verify, whole.draft, plain.verify, plain.draft):
        split = True
        verify = (whole.verify or 0.0) - (plain.verify or 0.0) - prefill
        draft = (whole.draft or 0.0) - (plain.draft or 0.0)
        other_ = whole.cost - 1 - prefill - verify - draft
    return Attribution(
        ideal=ideal,
        all_rounds=whole.tokens_per_pass,
        verified=whole.tokens_per_pass / (1 + verify),
        drafted=whole.tokens_per_pass / (1 + verify + draft),
        decoding=whole.tokens_per_pass / (1 + verify + draft + other_),
        measured=whole.speedup,
        verify=verify,
        draft=draft,
        other=other_,
        prefill=prefill,
        wider=_wider(base, ours, plain_s) if split else None,
        idle=1 - len(drafting) / len(ours),
        split=split,
    )


@dataclass(frozen=True)
class Decoding:
    """A run with the prefill left out, as predictions and papers take it: `speedup` = `tokens_per_pass` / `cost`.

    `verify`, `draft`, `other`: the cost of a round beyond one plain pass, which here is the mean round of the baseline
    after its first. Where a server does not report the split of a round, `verify` is all of it, and `split` is False.
    """

    tokens_per_pass: float
    verify: float
    draft: float
    other: float
    split: bool

    @property
    def cost(self) -> float:
        """Plain passes that a round takes."""
        return 1 + self.verify + self.draft + self.other

    @property
    def speedup(self) -> float:
        return self.tokens_per_pass / self.cost


def decoding(baseline: Trace, other: Trace) -> Decoding | None:
    """None as `attribute`."""
    base, ours = metrics.compared_rounds(baseline, other)
    if min(len(base), len(ours)) < 2 or not any(round_.drafted for round_ in ours[1:]):
        return None
    plain_s = _decoding_s(base) / (len(base) - 1)
    tokens_per_pass = _tokens(ours[1:]) / (len(ours) - 1) / (_tokens(base[1:]) / (len(base) - 1))
    cost = _decoding_s(ours) / (len(ours) - 1) / plain_s
    plain_verify, verify_s, draft_s = _mean(base, "verify_s"), _mean(ours, "verify_s"), _mean(ours, "draft_s")
    if plain_verify is None or verify_s is None or draft_s is None:
        return Decoding(tokens_per_pass, cost - 1, 0.0, 0.0, False)
    verify, draft = (verify_s - plain_verify) / plain_s, draft_s / plain_s
    return Decoding(tokens_per_pass, verify, draft, cost - 1 - verify - draft, True)


@dataclass(frozen=True)
class Against:
    """A measured speed-up against a published one, as factors whose product is measured / published.

    `acceptance`: ours over their tokens per pass. `cost`: their cost of a round over ours, in plain passes.
    `draft_share`, `verify_share`, `other_share`: what our rounds spend beyond a plain pass, as shares of 1; a published
    figure seldom says what its rounds spend. None without a published number of tokens per pass.
    """

    published: float
    acceptance: float | None
    cost: float | None
    draft_share: float
    verify_share: float
    other_share: float


def published(found: Decoding, speedup: float, tokens_per_pass: float | None = None) -> Against:
    """`speedup`, `tokens_per_pass`: as a paper or a model card names them, the prefill left out."""
    parts = [max(0.0, part) for part in (found.draft, found.verify, found.other)]
    total = math.fsum(parts) or 1.0
    acceptance = found.tokens_per_pass / tokens_per_pass if tokens_per_pass else None
    cost = tokens_per_pass / speedup / found.cost if tokens_per_pass else None
    return Against(speedup, acceptance, cost, *(part / total for part in parts))


def _wider(base: Sequence[Round], ours: Sequence[Round], plain_s: float) -> tuple[float, float] | None:
    """How much longer a verify pass takes than a plain one, in plain passes, the prefill left out."""
    from scipy import stats  # takes seconds

    plain, wide = ([round_.verify_s or 0.0 for round_ in rounds[1:]] for rounds in (base, ours))
    if min(len(plain), len(wide)) < LEAST_PASSES:
        return None
    found = stats.ttest_ind(wide, plain, equal_var=False).confidence_interval()
    return float(found.low / plain_s), float(found.high / plain_s)


def _prefill_s(rounds: Sequence[Round]) -> float:
    """What the first round takes beyond a mean later one; its verify pass alone, where that is reported."""
    later = _mean(rounds, "verify_s")
    if later is None or rounds[0].verify_s is None:
        return rounds[0].end_s - _decoding_s(rounds) / (len(rounds) - 1)
    return rounds[0].verify_s - later


def _decoding_s(rounds: Sequence[Round]) -> float:
    """Seconds after the first round, gaps between rounds included."""
    return rounds[-1].end_s - rounds[0].end_s


def _tokens(rounds: Sequence[Round]) -> int:
    return sum(len(round_.tokens) for round_ in rounds)


def _mean(rounds: Sequence[Round], part: str) -> float | None:
    """The mean of a duration over the decoding rounds; None if one of them does not report it."""
    found = [getattr(round_, part) for round_ in rounds[1:]]
    return None if None in found else math.fsum(found) / len(found)
