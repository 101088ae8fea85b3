"""Figures of a server: from its counters at two moments of real traffic, and from the requests of a load test.

Each figure of a load test is defined as vLLM's `bench serve`, AIPerf and SPEED-Bench define it. Where two tools give
one name to two things, both are here: vLLM's inter-token latency is the gap between chunks, each of which may hold
several tokens; AIPerf's is the time per output token, which vLLM calls TPOT.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from playground.metrics.lane import acceptance_rate
from playground.metrics.pooled import Timed, pooled


@dataclass(frozen=True)
class Counts:
    """A server's counters since it started, over all requests. None where it does not report one.

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
    """Return the figures between two readings; None if the server was restarted in between."""
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


@dataclass(frozen=True)
class Level:
    """The way in which requests arrive. Closed loop: `concurrency` users, each of whom sends the next request as soon
    as the last is answered. Open loop: `rate` requests a second on average, at random times (Poisson), whether or not
    the server can follow."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def size(self) -> float:
        return float(self.concurrency or self.rate or 0)

    @property
    def words(self) -> str:
        """The level in words, such as "4 users"."""
        if self.concurrency:
            return f"{self.concurrency} user{'s' if self.concurrency > 1 else ''}"
        return f"{self.rate:g} requests a second"

    def __str__(self) -> str:
        return f"{self.concurrency}" if self.concurrency else f"{self.rate:g}/s"


@dataclass(frozen=True)
class Answered:
    """One request under load. Times are in seconds.

    Attributes:
        level: the level it belongs to.
        lane: the name of the lane that answered.
        number: of the request among those of its level and lane, from 0.
        question: the index of its prompt in the suite.
        sent_s: when it was sent; in open loop, when it was due. Counted from the beginning of the level.
        arrivals: of each chunk, when it arrived, counted from `sent_s`, and its tokens.
        drafted, accepted: draft tokens; None if the server does not report them.
        error: why there is no whole answer; "" if there is one.
        counted: tokens of the answer, where the server does not report those of each chunk.
    """

    level: Level
    lane: str
    number: int
    question: int
    sent_s: float
    arrivals: tuple[tuple[float, int], ...]
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""
    counted: int | None = None

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals) if self.counted is None else self.counted

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.arrivals[0][0]

    @property
    def latency_s(self) -> float:
        """Time from sending to the last token: vLLM's E2EL, AIPerf's request latency."""
        return self.arrivals[-1][0]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token, (latency - TTFT) / (tokens - 1): vLLM's TPOT, AIPerf's inter-token latency. None for a
        single token."""
        return (self.latency_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def chunk_gaps_s(self) -> list[float]:
        """Seconds between chunks: vLLM's inter-token latencies."""
        return [b - a for (a, _), (b, _) in itertools.pairwise(self.arrivals)]


@dataclass(frozen=True)
class Limits:
    """The most seconds that a good request may take to the first token and per output token."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Percentiles:
    """The 50th and 99th percentile, linear between the two nearest. With fewer than 100 values the latter is about the
    largest."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Point:
    """A lane at a level. None where no request gives the figure.

    Attributes:
        requests, failed: answered as a whole; not.
        duration_s: from the first request sent to the last token; 0 if no token came.
        tokens_per_s: output tokens of all answers / duration_s.
        per_user: output tokens/s that a user sees: 1 / the median TPOT.
        goodput: requests within both limits / duration_s; failed requests do not count.
        ttft, tpot, chunk_gap: seconds.
        acceptance_rate: accepted / drafted.
    """

    level: Level
    lane: str
    requests: int
    failed: int
    duration_s: float
    tokens_per_s: float
    per_user: float | None
    goodput: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    chunk_gap: Percentiles | None
    acceptance_rate: float | None


def points(answered: Iterable[Answered], limits: Limits) -> list[Point]:
    """Return a point for each level and lane, in the order in which they first come."""
    groups: dict[tuple[Level, str], list[Answered]] = {}
    for request in answered:
        groups.setdefault((request.level, request.lane), []).append(request)
    return [_point(level, lane, group, limits) for (level, lane), group in groups.items()]


def _point(level: Level, lane: str, group: Sequence[Answered], limits: Limits) -> Point:
    whole = [request for request in group if not request.error]
    ends = [request.sent_s + (request.latency_s if request.arrivals else 0) for request in group]
    duration = max(ends) - min(request.sent_s for request in group)

    def per_second(count: int) -> float:
        return count / duration if duration else 0.0

    tpot = percentiles(request.tpot_s for request in whole)
    counted = [request for request in whole if request.drafted is not None]
    return Point(
        level=level,
        lane=lane,
        requests=len(whole),
        failed=len(group) - len(whole),
        duration_s=duration,
        tokens_per_s=per_second(sum(request.tokens for request in whole)),
        per_user=1 / tpot.p50 if tpot and tpot.p50 else None,
        goodput=per_second(sum(is_good(request, limits) for request in whole)),
        ttft=percentiles(request.ttft_s for request in whole),
        tpot=tpot,
        chunk_gap=percentiles(gap for request in whole for gap in request.chunk_gaps_s),
        acceptance_rate=acceptance_rate(
            sum(request.accepted or 0 for request in counted), sum(request.drafted or 0 for request in counted)
        ),
    )


def is_good(request: Answered, limits: Limits) -> bool:
    """Return True if the request is within both limits, as in vLLM's `--goodput` and AIPerf."""
    return request.ttft_s <= limits.ttft_s and (request.tpot_s or 0.0) <= limits.tpot_s


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Return the percentiles of the known values; None without any."""
    known = [value for value in values if value is not None]
    return Percentiles(*np.percentile(known, [50, 99]).tolist()) if known else None


@dataclass(frozen=True)
class Gain:
    """A lane against the baseline at a level. `speedup`: the ratio of the pooled latency per token over the requests
    that both answered as a whole; `interval`: its 95 % interval over requests, None for too few (see `pooled`). The
    intervals hold for all lanes and levels together, so that more of them make no more false gains."""

    level: Level
    lane: str
    requests: int
    speedup: float
    interval: tuple[float, float] | None


def gains(answered: Iterable[Answered], baseline: str) -> list[Gain]:
    """Compare every other lane with the baseline, at every level that both have."""
    rows = [request for request in answered if not request.error and request.tokens]
    base = {(row.level, row.number): row for row in rows if row.lane == baseline}
    groups: dict[tuple[Level, str], list[Answered]] = {}
    for row in rows:
        if row.lane != baseline and (row.level, row.number) in base:
            groups.setdefault((row.level, row.lane), []).append(row)
    found = []
    for (level, lane), group in groups.items():
        baselines = [base[level, row.number] for row in group]
        ratio = pooled([_timed(row) for row in baselines], [_timed(row) for row in group], len(groups))
        found.append(Gain(level, lane, len(group), ratio.speedup, ratio.interval))
    return found


def pays(gain: Gain) -> bool:
    """Return True if the lane was seen to be faster: its whole interval is above 1."""
    return gain.interval is not None and gain.interval[0] > 1


def _timed(row: Answered) -> Timed:
    return Timed((row.tokens,), (row.latency_s,))


def crossing(gains: Sequence[Gain]) -> float | None:
    """Return the concurrency (or rate) at which a lane's speed-up falls through 1, on a line between the two levels
    around it over the logarithm of the concurrency. None if it does not."""
    curve = sorted((gain.level.size, gain.speedup) for gain in gains)
    for (x, a), (y, b) in itertools.pairwise(curve):
        if a >= 1 > b:
            return float(math.exp(math.log(x) + (a - 1) / (a - b) * (math.log(y) - math.log(x))))
    return None
