"""Predictions from one finished run: other lookaheads, and a second device that drafts while the target verifies.

Other lookaheads: acceptance at position i is estimated as accepted / reached: the rounds that got as far as position
i - 1 and drafted on. Positions that few rounds reached are unobserved: the acceptance of the deepest observed one is
carried on, and the prediction says so. It is the right estimator where drafting stops for reasons that do not depend on
the next token, as with a constant lookahead. A drafter that stops when it is unsure reaches deep positions only when it
is sure, and longer drafts look better here than they are.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from playground import metrics
from playground.drafting_methods import METHODS
from playground.metrics import Measured
from playground.settings import SETTINGS
from playground.theory.formulas import expected_tokens, pass_seconds, speedup
from playground.trace import PassTime, Round, Trace

ENOUGH = 5  # rounds that must have reached a position for its acceptance to count
TOLERANCE = 0.1  # of the measured speed-up, beyond which a prediction needs a reason


@dataclass(frozen=True)
class Prediction:
    """A predicted `speedup` at a lookahead, without the prefill, and the tokens per pass that it is based on. `seen`:
    every position was reached often enough in the run."""

    lookahead: int
    tokens_per_pass: float
    speedup: float
    seen: bool


@dataclass(frozen=True)
class WhatIf:
    """The predictions of a run. `acceptance`: conditional, by position. `c`: cost of a draft token, in plain passes.
    `predictions`: for lookaheads from 0, if every round drafts. `drafting`: the share of the run's rounds that did,
    after the prefill. `used`: the mean number of tokens in the run's drafts. `measured`: its speed-up, without the
    prefill. `predicted`: the model's for the run's own mean lookahead."""

    acceptance: tuple[float, ...]
    c: float
    predictions: tuple[Prediction, ...]
    drafting: float
    used: float
    measured: float
    predicted: float

    @property
    def best(self) -> Prediction:
        """The fastest prediction that the run has seen; the smallest lookahead of equals."""
        return max((it for it in self.predictions if it.seen), key=lambda it: (it.speedup, -it.lookahead))

    def overall(self, at: Prediction, drafting: float) -> float:
        """Return the speed-up of a prediction where `drafting` of the rounds draft, and the others are plain ones."""
        cost = drafting * at.tokens_per_pass / at.speedup + 1 - drafting
        return (drafting * at.tokens_per_pass + 1 - drafting) / cost

    @property
    def agrees(self) -> bool:
        """True where the model reproduces the run's own speed-up."""
        return math.isclose(self.predicted, self.measured, rel_tol=TOLERANCE)


def what_if(baseline: Trace, other: Trace, most: int = 16) -> WhatIf | None:
    """Predict lookaheads up to `most`. None where the run drafted trees or too little, or its rounds do not report
    their times."""
    base, ours = metrics.compared_rounds(baseline, other)
    return what_if_of_runs([base], [ours], other.environment.pass_times, most)


class Constant(NamedTuple):
    """A constant lookahead, at least 1. `by_costs`: it is the best by a run's costs and acceptance; otherwise the run
    shows too little, and it is one more than the draft tokens that a round accepted on average."""

    lookahead: int
    by_costs: bool


def constant(baseline: Trace, other: Trace) -> Constant:
    """Return the constant lookahead to use instead of a run's policy or tree: the fastest of those whose every position
    was reached often enough. As many rounds are taken to draft nothing as those for which the drafter found nothing;
    rounds in which the policy let nothing be drafted are left out."""
    ours = metrics.compared_rounds(baseline, other)[1][1:]
    drafting = [round_ for round_ in ours if round_.drafted]
    if found := what_if(baseline, other, int(SETTINGS["lookahead"].high)):
        share = len(drafting) / sum(round_.lookahead != 0 for round_ in ours)
        seen = [it for it in found.predictions[1:] if it.seen]
        return Constant(max(seen, key=lambda it: (found.overall(it, share), -it.lookahead)).lookahead, True)
    accepted = statistics.fmean(len(round_.accepted) for round_ in drafting) if drafting else 0.0
    return Constant(min(other.lane.lookahead, 1 + round(accepted)), False)


def what_if_of_runs(
    base: Sequence[Sequence[Round]], ours: Sequence[Sequence[Round]], passes: Sequence[PassTime], most: int
) -> WhatIf | None:
    """Predict lookaheads up to `most` from several runs of each lane over the same prompts; None as for `what_if`.

    Args:
        base, ours: the rounds of each run, of the baseline and of the lane that drafts.
        passes: the measured times of a pass by its width.
    """
    drafting = [round_ for rounds in ours for round_ in rounds[1:] if round_.drafted]
    if min(map(len, base), default=0) < 2 or len(drafting) < ENOUGH or any(round_.is_tree for round_ in drafting):
        return None
    if any(None in (round_.draft_s, round_.verify_s) for rounds in [*base, *ours] for round_ in rounds):
        return None
    plain_s = _decoding_s(base) / sum(len(rounds) - 1 for rounds in base)
    acceptance, seen = _acceptance(drafting)
    if not seen:
        return None
    drafted = sum(len(round_.drafted) for round_ in drafting)
    c = sum(round_.draft_s or 0.0 for round_ in drafting) / drafted / plain_s
    verify = _verify_cost(_later(base), _later(ours), passes, plain_s)
    other_s = statistics.fmean(_rest(ours)) - statistics.fmean(_rest(base))
    longer = acceptance + [acceptance[-1]] * (most - len(acceptance))
    predictions = [Prediction(0, 1.0, 1.0, True)]
    for k in range(1, most + 1):
        tokens = expected_tokens(longer[:k])
        cost = verify(k + 1) + other_s / plain_s
        predictions.append(Prediction(k, tokens, speedup(tokens, k, c, cost), k <= seen))
    used = statistics.fmean(len(round_.drafted) for round_ in _later(ours))
    return WhatIf(
        acceptance=tuple(acceptance[:seen]),
        c=c,
        predictions=tuple(predictions),
        drafting=len(drafting) / len(_later(ours)),
        used=used,
        measured=_tokens(ours) / _tokens(base) * _decoding_s(base) / _decoding_s(ours),
        predicted=float(np.interp(used, range(most + 1), [it.speedup for it in predictions])),
    )


def _acceptance(drafting: Sequence[Round]) -> tuple[list[float], int]:
    """Return the acceptance by position, and how many positions were reached often enough."""
    positions = metrics.acceptance_by_position(drafting)
    seen = 0
    while seen < len(positions) and positions[seen].reached >= ENOUGH:
        seen += 1
    return [it.accepted / it.reached for it in positions[:seen]], seen


def _verify_cost(
    base: Sequence[Round], ours: Sequence[Round], passes: Sequence[PassTime], plain_s: float
) -> Callable[[int], float]:
    """Return the cost in plain passes by the width of a pass in tokens. The runs' own passes, without the prefill, fix
    its level; its growth with the width is that of the measured pass times or, without any, a straight line."""
    by_width: dict[int, list[float]] = {1: [round_.verify_s or 0.0 for round_ in base]}
    for round_ in ours:
        by_width.setdefault(len(round_.drafted) + 1, []).append(round_.verify_s or 0.0)
    widths = sorted(width for width, found in by_width.items() if width == 1 or len(found) >= ENOUGH)
    seconds = [statistics.median(by_width[width]) for width in widths]
    if len(passes) > 1:
        shape = pass_seconds(passes)
        scale = statistics.median(found / shape(width) for width, found in zip(widths, seconds, strict=True))
        return lambda width: scale * shape(width) / plain_s
    slope, start = np.polyfit(widths, seconds, 1).tolist() if len(widths) > 1 else (0.0, seconds[0])
    return lambda width: (start + slope * width) / plain_s


def _later(runs: Sequence[Sequence[Round]]) -> list[Round]:
    """Return the rounds after the prefill."""
    return [round_ for rounds in runs for round_ in rounds[1:]]


def _rest(runs: Sequence[Sequence[Round]]) -> list[float]:
    """Return the time of each decoding round without drafting and verifying."""
    return [
        now.end_s - before.end_s - (now.draft_s or 0.0) - (now.verify_s or 0.0)
        for rounds in runs
        for before, now in itertools.pairwise(rounds)
    ]


def _tokens(runs: Sequence[Sequence[Round]]) -> float:
    return sum(len(round_.tokens) for round_ in _later(runs))


def _decoding_s(runs: Sequence[Sequence[Round]]) -> float:
    return sum(rounds[-1].end_s - rounds[0].end_s for rounds in runs)


# Asynchronous drafting: the rounds of the run if a second device had drafted while the target verified. SSD (Kumar et
# al. 2026, arXiv 2603.03251): during a verify pass the other device drafts for the verdicts that it expects. If the
# verdict is one of them, the next draft is ready, or at least begun; else it is drafted then. All durations are those
# of the run. A verdict is how many tokens are accepted, and the target's own token after them.

CANDIDATES = 4  # of the drafter's likeliest tokens after each number of accepted ones that it drafts for
ASSUMED = (
    "the second device drafts as fast as this one did and hands drafts over in no time",
    f"drafts for all verdicts together, any number of accepted tokens with one of {CANDIDATES} after them, take as "
    "long as one",
    "what comes after a draft that is accepted whole is foreseen as often as the tokens within drafts",
)


@dataclass(frozen=True)
class Overlap:
    """A round as predicted, in seconds. `start_s`: when the verdict before it is known. `hidden_s`: the part of the
    draft that was made during the pass before. `wait_s`: the part that the target waits for. `foreseen`: the chance
    that the verdict before it was foreseen."""

    start_s: float
    hidden_s: float
    wait_s: float
    verify_s: float
    end_s: float
    foreseen: float


@dataclass(frozen=True)
class Asynchronous:
    """A predicted lane. `foreseen`: the share of verdicts. `speedup`: over the baseline of the run; `limit`: that of a
    device that foresees every verdict. `rounds`: those after the prefill, which hides no draft."""

    speedup: float
    limit: float
    foreseen: float
    rounds: tuple[Overlap, ...]
    assumed: tuple[str, ...] = ASSUMED


def asynchronous(measured: Measured) -> Asynchronous | None:
    """Predict the lane. None unless a model of its own drafts, since networks read the target's states of that very
    pass, or where a server does not report times or what the drafter's other candidates were."""
    rounds, equation = measured.ours.rounds, measured.equation
    drafts = METHODS[measured.ours.lane.drafter].weights == "model"
    if not drafts or equation is None or equation.draft is None or not any(it.drafted for it in rounds[1:]):
        return None
    usual = _foreseen_within(rounds)
    if usual is None:
        return None
    chances = [_foreseen(it, usual) for it in rounds[1:-1]]
    lane, best = _lane(rounds, [0.0, *chances]), _lane(rounds, [0.0, *[1.0] * len(chances)])
    total_s = rounds[-1].end_s
    return Asynchronous(
        speedup=equation.speedup * total_s / lane[-1].end_s,
        limit=equation.speedup * total_s / best[-1].end_s,
        foreseen=math.fsum(chances) / max(1, len(chances)),
        rounds=tuple(lane),
    )


def _lane(rounds: Sequence[Round], foreseen: Sequence[float]) -> list[Overlap]:
    """Return the rounds after the first. `foreseen`: the chance that the verdict of each round but the last was."""
    lane, at = list[Overlap](), rounds[0].end_s
    for before, it, chance in zip(rounds, rounds[1:], foreseen, strict=False):
        draft_s, verify_s = it.draft_s or 0.0, it.verify_s or 0.0
        hidden_s = chance * min(draft_s, before.verify_s or 0.0)
        end_s = at + (it.end_s - before.end_s) - hidden_s
        lane.append(Overlap(at, hidden_s, draft_s - hidden_s, verify_s, end_s, chance))
        at = end_s
    return lane


def _foreseen(verdict: Round, usual: float) -> float:
    """Return the chance that a verdict was among those that were drafted for."""
    target = verdict.target
    if target is None or target.reason != "correction":
        return usual
    return float(bool(target.rank) and (target.rank or 0) <= CANDIDATES)


def _foreseen_within(rounds: Sequence[Round]) -> float | None:
    """Return how often the target's choice at a judged position of a draft was among the drafter's candidates; None
    where they are not known."""
    ranks = [it.target.rank for it in rounds if it.target and it.target.reason == "correction"]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return None
    accepted = sum(len(it.accepted) for it in rounds)
    return (accepted + sum(1 <= rank <= CANDIDATES for rank in known)) / max(1, accepted + len(known))
