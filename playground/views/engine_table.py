"""One drafter in several engines: what each accepted of its drafts, on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from playground import metrics
from playground.format import UNKNOWN, number, percent
from playground.trace import Trace
from playground.views.table import Table

POSITIONS = 3  # that are shown


class Counted(NamedTuple):
    """A lane over all prompts. `drafts`: verify steps that had a draft; `length`: 1 + accepted ÷ drafts, vLLM's mean
    acceptance length, which neither the prefill nor steps without a draft change; `at`: the share of drafts accepted up
    to each position. None or empty where the engine does not report the steps."""

    tokens: int
    drafts: int | None
    drafted: int | None
    accepted: int | None
    length: float | None
    at: tuple[float, ...]


def counted(traces: Sequence[Trace]) -> Counted:
    """`traces`: of one lane, a prompt each."""
    found = [metrics.measure(trace) for trace in traces]
    tokens = sum(m.tokens or 0 for m in found)
    if any(trace.totals for trace in traces):
        drafted, hits = ([getattr(m, name) for m in found] for name in ("drafted", "accepted"))
        known = None not in (*drafted, *hits)
        return Counted(tokens, None, sum(drafted) if known else None, sum(hits) if known else None, None, ())
    rounds = [round_ for trace in traces for round_ in trace.rounds if round_.drafted]
    accepted, drafts = sum(len(round_.accepted) for round_ in rounds), len(rounds)
    at = metrics.acceptance_by_position(rounds)
    return Counted(
        tokens,
        drafts,
        sum(len(round_.drafted) for round_ in rounds),
        accepted,
        1 + accepted / drafts if drafts else None,
        tuple(each.accepted / drafts for each in at[:POSITIONS]),
    )


def table(lanes: Sequence[Sequence[Trace]]) -> Table:
    """A row for each lane, beside the first. `lanes`: the traces of each, on the same prompts in the same order."""
    first = counted(lanes[0])
    rows = []
    for traces in lanes:
        it = counted(traces)
        same = sum(metrics.first_difference(a, b) is None for a, b in zip(lanes[0], traces, strict=True))
        over = it.length / first.length - 1 if it.length and first.length else None
        at = [percent(share) for share in it.at]
        rows.append(
            (
                traces[0].lane.name, f"{it.tokens:,}", _count(it.drafts), _count(it.drafted), _count(it.accepted),
                number(it.length), UNKNOWN if over is None else f"{over:+.0%}",
                *at, *[UNKNOWN] * (POSITIONS - len(at)), f"{same} of {len(traces)}",
            )
        )  # fmt: skip
    columns = (
        "engine", "tokens", "drafts", "drafted", "accepted", "1 + accepted ÷ drafts", "beside the first",
        *(f"at {position}" for position in range(1, POSITIONS + 1)), "same text",
    )  # fmt: skip
    return Table("One drafter, several engines", columns, tuple(rows), numbers=len(columns) - 1)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
