"""A simulated service under load: Poisson arrivals, several replicas, each decoding all its requests in one batch.

A prediction. It knows the cost of a pass by its width and how many tokens a round gives, and nothing of memory limits,
scheduling of prefills or the network.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from playground import metrics
from playground.theory.attribution import attribute
from playground.theory.batch import pass_seconds
from playground.trace import Trace

REQUESTS, WARM = 400, 100  # simulated at each rate; the first of them find an empty service and are not counted


@dataclass(frozen=True)
class Service:
    """How one replica decodes.

    `round_s`: seconds of a round by the number of requests in the batch. `tokens`: what a round gives a request; one of
    them is chosen at random each time. `prefill_s`: seconds before a request's first round.
    """

    round_s: Callable[[float], float]
    tokens: Sequence[int]
    prefill_s: float


@dataclass(frozen=True)
class LoadPoint:
    """At a rate of requests per second over all replicas: the mean and 95th percentile of seconds from arrival to the
    last token, of each way of decoding. `pays`: speculation has the lower mean."""

    rate: float
    standard_s: float
    assisted_s: float
    standard_p95_s: float
    assisted_p95_s: float

    @property
    def pays(self) -> bool:
        return self.assisted_s < self.standard_s


def services(baseline: Trace, other: Trace) -> tuple[Service, Service] | None:
    """Standard and assisted decoding as one replica each, from a finished run; None without measured pass times of two
    widths, drafts, or the split of rounds."""
    found, times = attribute(baseline, other), other.environment.pass_times
    if found is None or not found.split or len(times) < 2:
        return None
    base, ours = metrics.compared_rounds(baseline, other)
    plain_s = (base[-1].end_s - base[0].end_s) / (len(base) - 1)
    width = 1 + sum(len(round_.drafted) for round_ in ours[1:]) / (len(ours) - 1)
    cost = pass_seconds(times)
    growth = lambda tokens: cost(tokens) / cost(1)  # noqa: E731
    # The run's own rounds fix the level at a batch of 1, the measured pass times how it grows with the batch.
    verify_s = plain_s * (1 + found.verify + found.other) / growth(width)
    standard = Service(lambda batch: plain_s * growth(batch), [1], base[0].end_s)
    assisted = Service(
        lambda batch: verify_s * growth(batch * width) + plain_s * found.draft * growth(batch),
        [len(round_.tokens) for round_ in ours[1:]],
        ours[0].end_s,
    )
    return standard, assisted


def loads_of(baseline: Trace, other: Trace) -> list[LoadPoint]:
    """Of a finished run, at several rates; empty where `services` is None. Takes seconds."""
    both = services(baseline, other)
    length = len(other.tokens)
    return under_load(*both, rates(both[0], length), length) if both else []


def rates(standard: Service, length: int) -> list[float]:
    """Requests per second to simulate: from a tenth of what one request at a time would fill to eight times that."""
    alone = 1 / (standard.prefill_s + length * standard.round_s(1))
    return [alone * share for share in (0.1, 0.3, 0.6, 1, 2, 4, 8)]


def under_load(
    standard: Service, assisted: Service, rates: Sequence[float], length: int, replicas: int = 1, seed: int = 0
) -> list[LoadPoint]:
    """The same arrivals through both. `length`: tokens of an answer."""
    points = []
    for rate in rates:
        mean = {}
        for name, service in (("standard", standard), ("assisted", assisted)):
            waits = _waits(service, rate / replicas, length, random.Random(seed))
            mean[name] = float(np.mean(waits)), float(np.percentile(waits, 95))
        (plain, plain_p95), (ours, ours_p95) = mean["standard"], mean["assisted"]
        points.append(LoadPoint(rate, plain, ours, plain_p95, ours_p95))
    return points


def _waits(service: Service, rate: float, length: int, rng: random.Random) -> list[float]:
    """Of one replica, at which arrivals that are spread evenly over all of them are Poisson, too: the seconds from
    arrival to the last token of each request, in the order in which they came."""
    arrivals = np.cumsum([rng.expovariate(rate) for _ in range(REQUESTS)]).tolist()
    left: dict[int, int] = {}  # tokens that each request in the batch still needs
    ended = [0.0] * REQUESTS
    round_s = functools.cache(service.round_s)
    now, came = 0.0, 0
    while came < REQUESTS or left:
        if not left:
            now = max(now, arrivals[came])
        while came < REQUESTS and arrivals[came] <= now:
            left[came] = length
            now += service.prefill_s  # the others wait for it
            came += 1
        now += round_s(len(left))
        for request in list(left):
            left[request] -= rng.choice(service.tokens)
            if left[request] <= 0:
                del left[request]
                ended[request] = now
    return [end - arrival for end, arrival in zip(ended, arrivals, strict=True)][WARM:]
