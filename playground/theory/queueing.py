"""A simulated service under load: Poisson arrivals, several replicas, each decoding all its requests in one batch.

A prediction. It knows the cost of a pass by its width and how many tokens a round gives, and nothing of memory limits,
scheduling of prefills or the network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    now, came = 0.0, 0
    while came < REQUESTS or left:
        if not left:
            now = max(now, arrivals[came])
        while came < REQUESTS and arrivals[came] <= now:
            left[came] = length
            now += service.prefill_s  # the others wait for it
            came += 1
        now += service.round_s(len(left))
        for request in list(left):
            left[request] -= rng.choice(service.tokens)
            if left[request] <= 0:
                del left[request]
                ended[request] = now
    return [end - arrival for end, arrival in zip(ended, arrivals, strict=True)][WARM:]
