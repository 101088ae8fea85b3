"""Figures by depth: the number of tokens of context before a round."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from playground.metrics.lane import acceptance_rate, mean_accepted_length
from playground.metrics.pooled import Uncertain, uncertain, unpaired
from playground.trace import Round, Trace

EDGES = (0, *(2**i for i in range(7, 18)))  # of the spans of depth: 128 to 131,072 tokens


@dataclass(frozen=True)
class DepthFigures:
    """The rounds that began at a depth from `low` to below `high` tokens, without a run's first, the prefill.
    `seconds`: decoding time. `verify_s`: that of the target's passes; None where a round does not report it. `answers`:
    the number of answers with a round there. `over`: the variation over their conversations, where there are
    enough. Files of earlier releases lack both."""

    low: int
    high: int
    rounds: int
    tokens: int
    drafted: int
    accepted: int
    seconds: float
    verify_s: float | None = None
    answers: int = 0
    over: Uncertain | None = None

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.drafted)

    @property
    def mean_accepted_length(self) -> float | None:
        return mean_accepted_length(self.tokens, self.rounds)

    @property
    def pass_s(self) -> float | None:
        """The mean time of a pass of the target."""
        return None if self.verify_s is None else self.verify_s / self.rounds

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None


@dataclass(frozen=True)
class AtDepth:
    """A span of a lane, with its speed over the baseline's in the same span; None where the baseline has no rounds
    there. `interval`: 95 %, where both have enough answers there."""

    figures: DepthFigures
    speedup: float | None
    interval: tuple[float, float] | None


def by_depth(
    traces: Sequence[Trace], edges: Sequence[int] = EDGES, units: Sequence[Hashable] | None = None
) -> list[DepthFigures]:
    """Return the figures of one lane's rounds in each span of depth that has some. Where a server does not report the
    prompt's tokens, depth counts those of the output; a lane whose rounds it does not report has no figures. `units`:
    of each trace, the conversation that it is a part of, which varies as a whole; by default each is one."""
    spans, units = list(itertools.pairwise(edges)), units or range(len(traces))
    found: dict[int, list[tuple[Hashable, int, Round, float]]] = {}  # by span: unit, answer, round and its seconds
    for answer, (unit, trace) in enumerate(zip(units, traces, strict=True)):
        if trace.totals:
            continue
        depth, last_s = len(trace.prompt_ids or ()), None
        for round_ in trace.rounds:
            if last_s is not None:
                at = next((i for i, (low, high) in enumerate(spans) if low <= depth < high), len(spans) - 1)
                found.setdefault(at, []).append((unit, answer, round_, round_.end_s - last_s))
            depth, last_s = depth + len(round_.tokens), round_.end_s
    return [_figures(*spans[at], found[at]) for at in sorted(found)]


def speedups(base: Sequence[DepthFigures], ours: Sequence[DepthFigures]) -> list[AtDepth]:
    """Compare each span of a lane with the baseline's."""
    plain = {it.low: it for it in base}
    return [_compared(plain.get(it.low), it) for it in ours]


def _compared(base: DepthFigures | None, ours: DepthFigures) -> AtDepth:
    if base is None or not base.tokens_per_s or not ours.tokens_per_s:
        return AtDepth(ours, None, None)
    ratio = ours.tokens_per_s / base.tokens_per_s
    return AtDepth(ours, ratio, unpaired(ratio, base.over, ours.over))


def stops_paying(base: Sequence[DepthFigures], ours: Sequence[DepthFigures]) -> int | None:
    """Return the depth from which on the lane is nowhere faster than the baseline; None if it is faster to the end."""
    known = [(it.figures.low, it.speedup) for it in speedups(base, ours) if it.speedup is not None]
    paying = [low for low, ratio in known if ratio > 1]
    beyond = [low for low, _ in known if not paying or low > max(paying)]
    return min(beyond, default=None)


def _figures(low: int, high: int, found: Sequence[tuple[Hashable, int, Round, float]]) -> DepthFigures:
    """Sum up a span. `found`: the unit, the answer, the round and the seconds of each round."""
    rounds = [round_ for _, _, round_, _ in found]
    verify = [round_.verify_s for round_ in rounds if round_.verify_s is not None]
    of: dict[Hashable, tuple[int, float]] = {}
    for unit, _, round_, seconds in found:
        tokens, so_far = of.get(unit, (0, 0.0))
        of[unit] = tokens + len(round_.tokens), so_far + seconds
    return DepthFigures(
        low,
        high,
        len(rounds),
        sum(tokens for tokens, _ in of.values()),
        sum(len(round_.drafted) for round_ in rounds),
        sum(len(round_.accepted) for round_ in rounds),
        sum(seconds for _, seconds in of.values()),
        sum(verify) if len(verify) == len(rounds) else None,
        len({answer for _, answer, _, _ in found}),
        uncertain([*of.values()]),
    )
