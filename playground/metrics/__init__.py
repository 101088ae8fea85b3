"""Figures from a trace. Every formula is here once, with its definition.

Nothing here measures: the clock was read by the worker that decoded, and its readings are in the rounds.
"""

from __future__ import annotations

from playground.metrics.calibration import Calibration, calibration
from playground.metrics.comparison import (
    Difference,
    Equation,
    FirstDifference,
    compare,
    compared_rounds,
    differences,
    equation,
    first_difference,
    speedup,
)
from playground.metrics.drafts import (
    Otherwise,
    PositionAcceptance,
    Ranks,
    acceptance_by_position,
    add_positions,
    otherwise,
    positions,
    ranks,
)
from playground.metrics.lane import (
    Metrics,
    acceptance_rate,
    accepted_up_to,
    expected_length,
    mean_accepted_length,
    measure,
    measure_rounds,
)
from playground.metrics.lossless import AcceptanceTest, LawTest, NearTie, Placed, acceptance_test, judged, law_test
from playground.metrics.pooled import Over, Pooled, Spread, Timed, differs, macro, pooled, spread
from playground.metrics.repeats import FLOOR, MANY, Repeated, beside, headline, leader, noise, ranked, repeated, tied
from playground.metrics.times import (
    UNSTEADY,
    Gaps,
    gaps,
    inter_token_latencies,
    plain_pass_s,
    token_times,
    unsteadiness,
    unsteady,
)

__all__ = [
    "FLOOR",
    "MANY",
    "UNSTEADY",
    "AcceptanceTest",
    "Calibration",
    "Difference",
    "Equation",
    "FirstDifference",
    "Gaps",
    "LawTest",
    "Metrics",
    "NearTie",
    "Otherwise",
    "Over",
    "Placed",
    "Pooled",
    "PositionAcceptance",
    "Ranks",
    "Repeated",
    "Spread",
    "Timed",
    "acceptance_by_position",
    "acceptance_rate",
    "acceptance_test",
    "accepted_up_to",
    "add_positions",
    "beside",
    "calibration",
    "compare",
    "compared_rounds",
    "differences",
    "differs",
    "equation",
    "expected_length",
    "first_difference",
    "gaps",
    "headline",
    "inter_token_latencies",
    "judged",
    "law_test",
    "leader",
    "macro",
    "mean_accepted_length",
    "measure",
    "measure_rounds",
    "noise",
    "otherwise",
    "plain_pass_s",
    "pooled",
    "positions",
    "ranked",
    "ranks",
    "repeated",
    "speedup",
    "spread",
    "tied",
    "token_times",
    "unsteadiness",
    "unsteady",
]
