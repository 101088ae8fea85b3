"""Figures of a server that serves traffic, from its counters at two moments."""

from __future__ import annotations

from dataclasses import dataclass

from playground.metrics.lane import acceptance_rate


@dataclass(frozen=True)
class Counts:
    """What a server has counted since it started, over all requests. None where it does not report it.

    Attributes:
        drafts: verify steps with a draft.
        drafted, accepted: draft tokens.
        accepted_at: accepted tokens by position in the draft, the first position first; empty if not reported.
        tokens: of all answers.
        running, waiting: requests at this moment.
    """

    drafts: int | None
    drafted: int | None
    accepted: int | None
    accepted_at: tuple[int, ...]
    tokens: int
    running: int
    waiting: int


@dataclass(frozen=True)
class Reading:
    """Counts at a moment, in seconds of any clock that runs steadily."""

    seconds: float
    counts: Counts


@dataclass(frozen=True)
class Window:
    """A server between two readings. None if nothing was drafted, or the server does not report it.

    Attributes:
        start_s, end_s: of the readings.
        drafted: draft tokens.
        acceptance_rate: accepted / drafted.
        mean_accepted_length: 1 + accepted / drafts, as vLLM has it: steps without a draft do not count.
        accepted_at: by position in the draft, accepted / drafts (unconditional, as vLLM logs it).
        tokens_per_s: of all answers together.
        running, waiting: requests at the end.
    """

    start_s: float
    end_s: float
    drafted: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    accepted_at: tuple[float, ...]
    tokens_per_s: float
    running: int
    waiting: int


def window(before: Reading, after: Reading) -> Window | None:
    """None if the server was started anew in between."""
    a, b = before.counts, after.counts
    drafts, drafted, accepted = (
        _gained(getattr(a, name), getattr(b, name)) for name in ("drafts", "drafted", "accepted")
    )
    tokens = b.tokens - a.tokens
    if min(tokens, drafts or 0, drafted or 0, accepted or 0) < 0 or after.seconds <= before.seconds:
        return None
    return Window(
        start_s=before.seconds,
        end_s=after.seconds,
        drafted=drafted or 0,
        acceptance_rate=acceptance_rate(accepted or 0, drafted or 0),
        mean_accepted_length=1 + (accepted or 0) / drafts if drafts else None,
        accepted_at=tuple((y - x) / drafts for x, y in zip(a.accepted_at, b.accepted_at, strict=False))
        if drafts
        else (),
        tokens_per_s=tokens / (after.seconds - before.seconds),
        running=b.running,
        waiting=b.waiting,
    )


def _gained(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
