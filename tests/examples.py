"""Rounds and traces made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from playground.conversation import Message
from playground.lane import Lane, Request
from playground.trace import DraftToken, Environment, Round, TargetToken, Trace

ENVIRONMENT = Environment(
    versions={"playground": "0", "torch": "2"},
    platform="test",
    device="cpu",
    device_name="a test's CPU",
    dtype="float32",
    threads=1,
    weights=("made by hand",),
    created="2026-01-01T00:00:00+00:00",
)


def dialogue(*texts: str) -> tuple[Message, ...]:
    """The turns of a user and an assistant."""
    return tuple(Message(role, text) for role, text in zip(itertools.cycle(("user", "assistant")), texts, strict=False))


def plain_round(id_: int, *, margin: float = 0.5, start_s: float = 0.0, verify_s: float = 0.1) -> Round:
    own = TargetToken(id_, f"{id_} ", False, 0.9, margin, "plain")
    return Round(1, (), own, start_s, 0.0, verify_s, start_s + verify_s)


def drafted_round(
    ids: Sequence[int], *, accepted: int, own: int, start_s: float = 0.0, draft_s: float = 0.1, verify_s: float = 0.1
) -> Round:
    decisions = ["accepted"] * accepted + ["rejected"] + ["unverified"] * len(ids)
    drafted = tuple(
        DraftToken(id_, f"{id_} ", False, 0.8, *((None, None) if decision == "unverified" else (0.7, 0.5)), decision)
        for id_, decision in zip(ids, decisions, strict=False)
    )
    reason = "bonus" if accepted == len(ids) else "correction"
    target = TargetToken(own, f"{own} ", False, 0.9, 0.5, reason)
    return Round(len(ids), drafted, target, start_s, draft_s, verify_s, start_s + draft_s + verify_s)


def tree_round(*, start_s: float = 0.0) -> Round:
    """Two branches after the text, of which the second is kept; after it two more, of which none is."""
    fields = [(4, -1, "rejected"), (5, 0, "unverified"), (6, -1, "accepted"), (7, 2, "rejected"), (8, 2, "rejected")]
    drafted = []
    for id_, parent, decision in fields:
        p, margin = (None, None) if decision == "unverified" else (0.3, 0.5)
        drafted.append(DraftToken(id_, f"{id_} ", False, 0.4, p, margin, decision, parent))
    own = TargetToken(9, "9 ", False, 0.9, 0.5, "correction", rank=3)
    return Round(2, tuple(drafted), own, start_s, 0.1, 0.1, start_s + 0.2)


def trace(rounds: Sequence[Round], drafter: str = "none", name: str = "", **request) -> Trace:
    lane = Lane(name or ("Standard" if drafter == "none" else "Assisted"), target="t", drafter=drafter)
    return Trace(lane, Request("a prompt", **request), ENVIRONMENT, (1, 2), tuple(rounds), "length")
