"""Attribution of a speed-up: the steps from the tokens per pass to the measured value.

Each step adds one cost to the steps before, so the last one is the measured speed-up to the digit. The terms are those
of `metrics.equation`, which the page shows with the speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from playground import metrics
from playground.metrics import Equation, Measured
from playground.trace import Round, Trace, once

LEAST_PASSES = 5  # passes of each lane needed to compare their times


@dataclass(frozen=True)
class Attribution:
    """A speed-up with the causes of its terms.

    `idle`: the share of rounds without a draft. `drafting`: the tokens per pass of the others, over those of the
    baseline. `wider`: how much longer a verify pass takes than a plain one, in plain passes, as the 95 % interval of
    Welch's test of the lanes' passes; None for few passes, or where a server does not report their times.
    """

    equation: Equation
    idle: float
    drafting: float
    wider: tuple[float, float] | None

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The cost that each step takes into account, and the speed-up after it."""
        it = self.equation
        found = [("tokens per check", it.tokens_per_pass)]
        if it.verify is not None and it.draft is not None:
            found.append(("checking", it.tokens_per_pass / it.verify))
            found.append(("guessing", it.tokens_per_pass / (it.verify + it.draft)))
        last = "cost of a check" if it.verify is None else "rest"
        return [*found, (last, it.tokens_per_pass / it.cost), ("prefill", it.speedup)]


@once
def attribute(measured: Measured) -> Attribution | None:
    """Attribute the speed-up to its costs; None if a lane has fewer than two rounds, or nothing was drafted after the
    first."""
    base, ours = metrics.compared_rounds(measured.base, measured.ours)
    whole = measured.equation
    if whole is None or not any(it.drafted for it in ours[1:]):
        return None
    drafting = [round_ for round_ in ours if round_.drafted]
    plain_s = (base[-1].end_s - metrics.prefill_s(base)) / len(base)
    return Attribution(
        equation=whole,
        idle=1 - len(drafting) / len(ours),
        drafting=_tokens(drafting) / len(drafting) / (_tokens(base) / len(base)),
        wider=None if whole.verify is None else _wider(base, ours, plain_s),
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
    """Return the run without its prefill; None where `attribute` is None."""
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
    """Compare a run with a published result. `speedup`, `tokens_per_pass`: the numbers of a paper or a model card,
    without the prefill."""
    parts = [max(0.0, part) for part in (found.draft, found.verify, found.other)]
    total = math.fsum(parts) or 1.0
    acceptance = found.tokens_per_pass / tokens_per_pass if tokens_per_pass else None
    cost = tokens_per_pass / speedup / found.cost if tokens_per_pass else None
    return Against(speedup, acceptance, cost, *(part / total for part in parts))


def _wider(base: Sequence[Round], ours: Sequence[Round], plain_s: float) -> tuple[float, float] | None:
    """Return the interval of `Attribution.wider`, without the prefill."""
    from scipy import stats  # takes seconds

    plain, wide = ([round_.verify_s or 0.0 for round_ in rounds[1:]] for rounds in (base, ours))
    if min(len(plain), len(wide)) < LEAST_PASSES:
        return None
    found = stats.ttest_ind(wide, plain, equal_var=False).confidence_interval()
    return float(found.low / plain_s), float(found.high / plain_s)


def _decoding_s(rounds: Sequence[Round]) -> float:
    """Return seconds after the first round, gaps between rounds included."""
    return rounds[-1].end_s - rounds[0].end_s


def _tokens(rounds: Sequence[Round]) -> int:
    return sum(len(round_.tokens) for round_ in rounds)


def _mean(rounds: Sequence[Round], part: str) -> float | None:
    """Return the mean of a duration over the decoding rounds; None if one of them does not report it."""
    found = [getattr(round_, part) for round_ in rounds[1:]]
    return None if None in found else math.fsum(found) / len(found)
