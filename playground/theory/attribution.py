"""Why this speed-up: from the tokens per pass of the drafting rounds down to what was measured.

Each step takes one cost into account and keeps the steps before, so the last one is the measured speed-up to the digit.
The unit is the plain pass: the mean decoding round of the baseline, its prefill left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from playground import metrics
from playground.trace import Round, Trace


@dataclass(frozen=True)
class Attribution:
    """The speed-up after each step:

    `ideal`: every round drafts, and a round costs one plain pass: tokens per drafting round. `all_rounds`: rounds
    without a draft count, too. `verified`: verify passes cost what they do. `drafted`: so does drafting. `decoding`: so
    does everything else in a round (commit, the loop itself). `measured`: the first round counts, with the
    prefill of both lanes.

    `verify`, `draft`, `other`: what the steps cost, in plain passes a round beyond the first plain pass. `idle`: the
    share of decoding rounds without a draft. Where a server does not report the split of a round, `verify` is the whole
    cost, and `split` is False.
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
    idle: float
    split: bool

    @property
    def cost(self) -> float:
        """Plain passes that a decoding round takes."""
        return 1 + self.verify + self.draft + self.other


def attribute(baseline: Trace, other: Trace) -> Attribution | None:
    """None if a lane has fewer than two rounds, or nothing was drafted after the first."""
    base, ours = metrics.compared_rounds(baseline, other)
    measured = metrics.speedup(base, ours)
    drafting = [round_ for round_ in ours[1:] if round_.drafted]
    if measured is None or len(base) < 2 or not drafting:
        return None
    rounds = len(ours) - 1
    plain_s = _decoding_s(base) / (len(base) - 1)
    plain_tokens = _tokens(base[1:]) / (len(base) - 1)  # 1 unless the baseline drafts
    ideal = _tokens(drafting) / len(drafting) / plain_tokens
    all_rounds = _tokens(ours[1:]) / rounds / plain_tokens
    cost = _decoding_s(ours) / rounds / plain_s
    plain_verify, verify_s, draft_s = _mean(base, "verify_s"), _mean(ours, "verify_s"), _mean(ours, "draft_s")
    split = plain_verify is not None and verify_s is not None and draft_s is not None
    verify, draft = cost - 1, 0.0
    if plain_verify is not None and verify_s is not None and draft_s is not None:
        verify, draft = (verify_s - plain_verify) / plain_s, draft_s / plain_s
    return Attribution(
        ideal=ideal,
        all_rounds=all_rounds,
        verified=all_rounds / (1 + verify),
        drafted=all_rounds / (1 + verify + draft),
        decoding=all_rounds / cost,
        measured=measured,
        verify=verify,
        draft=draft,
        other=cost - 1 - verify - draft,
        idle=1 - len(drafting) / rounds,
        split=split,
    )


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


def published(found: Attribution, speedup: float, tokens_per_pass: float | None = None) -> Against:
    """`speedup`, `tokens_per_pass`: as a paper or a model card names them, the prefill left out."""
    parts = [max(0.0, part) for part in (found.draft, found.verify, found.other)]
    total = math.fsum(parts) or 1.0
    acceptance = found.all_rounds / tokens_per_pass if tokens_per_pass else None
    cost = tokens_per_pass / speedup / found.cost if tokens_per_pass else None
    return Against(speedup, acceptance, cost, *(part / total for part in parts))


def _decoding_s(rounds: Sequence[Round]) -> float:
    """Seconds after the first round, gaps between rounds included."""
    return rounds[-1].end_s - rounds[0].end_s


def _tokens(rounds: Sequence[Round]) -> int:
    return sum(len(round_.tokens) for round_ in rounds)


def _mean(rounds: Sequence[Round], part: str) -> float | None:
    """The mean of a duration over the decoding rounds; None if one of them does not report it."""
    found = [getattr(round_, part) for round_ in rounds[1:]]
    return None if None in found else math.fsum(found) / len(found)
