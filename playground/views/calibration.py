"""Whether the drafter's confidence is worth anything, as tables."""

from __future__ import annotations

from collections.abc import Iterable

from playground import metrics
from playground.format import number, percent
from playground.trace import Trace
from playground.views.table import Table


def tables(traces: Iterable[Trace]) -> list[Table]:
    """Of the lanes that drafted with a q: by position in the draft, then by q. None of synthetic lanes, whose verdicts
    were drawn."""
    found = {trace.lane.name: metrics.calibration(trace.rounds) for trace in traces if not trace.lane.drawn}
    found = {name: each for name, each in found.items() if each}
    if not found:
        return []
    by_position = [
        (name, "all" if it.position is None else str(it.position), f"{it.tokens:,}", number(it.q), percent(it.accepted),
         number(it.ece, 3), number(it.brier, 3))
        for name, each in found.items()
        for it in each
    ]  # fmt: skip
    by_q = [
        (name, f"{it.low:.1f} to {it.high:.1f}", f"{it.tokens:,}", number(it.q), percent(it.accepted))
        for name, each in found.items()
        for it in each[0].bins
    ]
    return [
        Table(
            "Is the drafter's confidence worth anything? q against acceptance, by position in the draft",
            ("lane", "position", "tokens", "mean q", "accepted", "ECE", "Brier"),
            tuple(by_position),
            numbers=5,
        ),
        Table("Reliability of q", ("lane", "q", "tokens", "mean q", "accepted"), tuple(by_q), numbers=3),
    ]


def sentence(trace: Trace) -> str:
    """Over all positions, in a run's details; "" if there is nothing to say."""
    found = metrics.calibration(trace.rounds)
    if not found or trace.lane.drawn:
        return ""
    it = found[0]
    return (
        f"mean q {it.q:.2f}, accepted {it.accepted:.0%} of {it.tokens:,} judged draft tokens; calibration error "
        f"{it.ece:.3f}, Brier score {it.brier:.3f}"
    )
