"""Asynchronous drafting, predicted: the rounds of a run if a second device had drafted while the target verified.

SSD (Kumar et al. 2026, arXiv 2603.03251): during a verify pass the other device drafts for the verdicts that it
expects. If the verdict is one of them, the next draft is ready, or at least begun; else it is drafted then. All
durations are those of the run. A verdict is how many tokens are accepted, and the target's own token after them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from playground.drafting_methods import METHODS
from playground.metrics import Measured
from playground.trace import Round

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
