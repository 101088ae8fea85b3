"""A simulated service under load: Poisson arrivals at one replica, which decodes all its requests in one batch.

It uses the cost of a pass by its width and the tokens that a round gives, and ignores memory limits and the network.
One request is prefilled between two rounds, as servers that interleave prefills do. Where closed forms exist (M/D/1,
processor sharing, infinitely many servers), the simulation agrees with them.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from playground import metrics
from playground.metrics.pooled import quantile
from playground.theory.attribution import decoding
from playground.theory.formulas import pass_seconds
from playground.trace import Trace

REQUESTS, WARM = 300, 100  # of a simulation; the first WARM find an empty service and are not counted
SEEDS = 5  # simulations at each rate


@dataclass(frozen=True)
class Service:
    """One replica.

    `round_s`: seconds of a round by the number of requests in the batch. `tokens`: the numbers of tokens that a round
    gives a request; one of them is chosen at random each time. `prefill_s`: seconds of a request's first round.
    `first`: the tokens that it gives.
    """

    round_s: Callable[[float], float]
    tokens: Sequence[int]
    prefill_s: float
    first: int = 1


@dataclass(frozen=True)
class Band:
    """A mean over simulations, and its 95 % interval over their seeds (Student's)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class LoadPoint:
    """The simulated times at a rate of requests per second: the mean seconds from arrival to the last token, of each
    way of decoding. `ratio`: standard over assisted, for the same arrivals."""

    rate: float
    standard: Band
    assisted: Band
    ratio: Band

    @property
    def pays(self) -> bool:
        """True where speculation has the lower mean."""
        return self.ratio.mean > 1


def services(baseline: Trace, other: Trace) -> tuple[Service, Service] | None:
    """Return standard and assisted decoding as one replica each, from a finished run; None without measured pass times
    of two widths, drafts, or the split of rounds."""
    measured, times = decoding(baseline, other), other.environment.pass_times
    if measured is None or not measured.split or len(times) < 2:
        return None
    base, ours = metrics.compared_rounds(baseline, other)
    plain_s = (base[-1].end_s - base[0].end_s) / (len(base) - 1)
    width = 1 + sum(len(round_.drafted) for round_ in ours[1:]) / (len(ours) - 1)
    cost = pass_seconds(times)
    growth = lambda tokens: cost(tokens) / cost(1)  # noqa: E731
    # The run's own rounds fix the level at a batch of 1, the measured pass times how it grows with the batch.
    verify_s = plain_s * (1 + measured.verify + measured.other) / growth(width)
    standard = Service(lambda batch: plain_s * growth(batch), [1], base[0].end_s, len(base[0].tokens))
    assisted = Service(
        lambda batch: verify_s * growth(batch * width) + plain_s * measured.draft * growth(batch),
        [len(round_.tokens) for round_ in ours[1:]],
        ours[0].end_s,
        len(ours[0].tokens),
    )
    return standard, assisted


def loads_of(baseline: Trace, other: Trace) -> list[LoadPoint]:
    """Simulate a finished run at several rates; empty where `services` is None. Takes seconds."""
    both = services(baseline, other)
    length = len(other.tokens)
    return under_load(*both, rates(both[0], length), length) if both else []


def rates(standard: Service, length: int) -> list[float]:
    """Return requests per second to simulate: from a tenth of the rate that fills a service of one request at a time to
    eight times that rate."""
    alone = 1 / (standard.prefill_s + length * standard.round_s(1))
    return [alone * share for share in (0.1, 0.3, 0.6, 1, 2, 4, 8)]


def under_load(
    standard: Service, assisted: Service, rates: Sequence[float], length: int, seeds: int = SEEDS
) -> list[LoadPoint]:
    """Simulate the same arrivals with both services, at each rate `seeds` times. `length`: tokens of an answer."""
    points = []
    for rate in rates:
        waits = [
            [seconds(service, rate, length, random.Random(seed)) for seed in range(seeds)]
            for service in (standard, assisted)
        ]
        means = np.mean(waits, axis=2)  # (ways, seeds)
        points.append(LoadPoint(rate, _band(means[0]), _band(means[1]), _band(means[0] / means[1])))
    return points


def crossing(points: Sequence[LoadPoint]) -> float | None:
    """Return the rate at which speculation stops paying: where the ratio falls through 1, on a line between the two
    rates around it, both logarithmic, as the chart draws them. None if it does not."""
    for a, b in itertools.pairwise(points):
        if a.pays and not b.pays:
            high, low = math.log(a.ratio.mean), math.log(b.ratio.mean)
            return a.rate * (b.rate / a.rate) ** (high / (high - low))
    return None


def seconds(service: Service, rate: float, length: int, rng: random.Random) -> list[float]:
    """Simulate one replica and return the seconds from arrival to the last token of each request, in order of
    arrival."""
    arrivals = np.cumsum([rng.expovariate(rate) for _ in range(REQUESTS)]).tolist()
    waiting = deque(range(REQUESTS))
    left: dict[int, int] = {}  # tokens that each request in the batch still needs
    ended = [0.0] * REQUESTS
    round_s = functools.cache(service.round_s)
    now = 0.0

    while waiting or left:
        if not left:
            now = max(now, arrivals[waiting[0]])
        if waiting and arrivals[waiting[0]] <= now:
            request = waiting.popleft()
            now += service.prefill_s  # the others wait for it
            left[request] = length - service.first
            if left[request] <= 0:
                del left[request]
                ended[request] = now
        if left:
            now += round_s(len(left))
            given = rng.choices(service.tokens, k=len(left))
            left = {request: needs - tokens for (request, needs), tokens in zip(left.items(), given, strict=True)}
            if min(left.values()) <= 0:
                for request in [request for request, needs in left.items() if needs <= 0]:
                    del left[request]
                    ended[request] = now
    return [end - arrival for end, arrival in zip(ended, arrivals, strict=True)][WARM:]


def _band(values: np.ndarray) -> Band:
    """Return mean and interval over two seeds or more."""
    mean, n = float(values.mean()), len(values)
    margin = quantile(n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Band(mean, mean - margin, mean + margin)
