"""Figures from a trace. Every formula is here once, with its definition.

Nothing here measures: the clock was read by the worker that decoded, and its readings are in the rounds.
"""

from __future__ import annotations

from playground.metrics.comparison import (
    Equation,
    FirstDifference,
    compared_rounds,
    equation,
    first_difference,
    near_tie,
    prefill_s,
    whole_run_ratio,
)
from playground.metrics.depth import AtDepth, DepthFigures, by_depth, speedups, stops_paying
from playground.metrics.drafts import (
    BothRules,
    PositionAcceptance,
    acceptance_by_position,
    add_both_rules,
    add_positions,
    both_rules,
    calibration,
    first_of_chance,
    out_of_context,
    ranks,
    wilson,
)
from playground.metrics.lane import (
    UNSTEADY,
    Metrics,
    acceptance_rate,
    accepted_up_to,
    expected_length,
    gaps,
    mean_accepted_length,
    measure,
    measure_rounds,
    plain_pass_s,
    positions,
    unsteadiness,
    unsteady,
)
from playground.metrics.lossless import (
    NEVER,
    AcceptanceTest,
    LawTest,
    Logprobs,
    NearTie,
    Placed,
    Scored,
    acceptance_test,
    judged,
    law_test,
    near_tie_of,
    reasons,
    rounded,
    server_test,
    two_sample_test,
)
from playground.metrics.measured import (
    FLOOR,
    MANY,
    WIDE,
    Measured,
    leader,
    measured,
    noise,
    ranked,
    segment_speedups,
    shown,
    sure,
)
from playground.metrics.pooled import Over, Pooled, Timed, differs, macro, pooled, quartiles
from playground.metrics.segments import (
    SEGMENTS,
    Segment,
    SegmentFigures,
    add_segments,
    answered,
    by_segment,
    segments,
)
