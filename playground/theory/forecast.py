"""A forecast of the speed-up on hardware that one does not own.

Acceptance is the drafter's, and comes from a measured run; time is the machine's, and comes from a roofline: a pass
takes as long as its bytes take through the memory and its operations through the arithmetic, which overlap in part, and
some microseconds for each product of a matrix and for the loop. How near real passes come to the peaks is assumed, as a
range, so that a forecast is a band.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import yaml

from playground import ROOT, metrics
from playground.errors import PlaygroundError
from playground.theory.queueing import Band
from playground.trace import Environment, Shape

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.625}  # of a weight
CACHED = 2.0  # bytes of a key or value
OF_BANDWIDTH, OF_ARITHMETIC = (0.6, 0.9), (0.3, 0.8)  # shares of the peaks that passes reach; docs/measurements.md
EAGER_US = (20.0, 60.0)  # microseconds of a product in passes that torch runs eagerly
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SEEN = 5  # drafts that must have reached a position


@dataclass(frozen=True)
class Hardware:
    """A device. `bandwidth`: bytes a second; `flops`: operations a second, by format. `product_us`, `pass_us`: the
    microseconds that each product of a matrix and each pass take besides, low and high. `match`: a part of its name in
    an `Environment`. `source`: an address. `memory`, `arithmetic`: the shares of `bandwidth` and
    `flops` that passes reach, low and high."""

    name: str
    title: str
    match: str
    bandwidth: float
    flops: Mapping[str, float]
    product_us: tuple[float, float]
    pass_us: tuple[float, float]
    source: str
    memory: tuple[float, float] = OF_BANDWIDTH
    arithmetic: tuple[float, float] = OF_ARITHMETIC

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The quantities that are assumed as a range, low and high: the last argument of `seconds`."""
        return self.memory, self.arithmetic, self.product_us, self.pass_us

    def rate(self, form: str) -> float:
        """Return the operations a second in a format, or in bfloat16 where the device has no faster way for it."""
        return self.flops.get(form) or self.flops["bfloat16"]


@dataclass(frozen=True)
class Drafts:
    """A way of drafting, as a run measured it.

    `accepted`: for each position of a draft, how many drafts reached it and how many of these had it accepted. `share`:
    of the rounds that drafted. `used`: the mean length of a draft. `drafter`: None where it has no weights. `parallel`:
    whether one pass of it gives a whole draft. `measured`: the speed-up that the run had. `eager`: whether the drafter
    ran eagerly there.
    """

    name: str
    accepted: tuple[tuple[int, int], ...]
    share: float
    used: float
    target: Shape
    drafter: Shape | None
    parallel: bool
    measured: float | None
    eager: bool = False

    @property
    def most(self) -> int:
        """The longest draft that the run saw often enough."""
        return sum(1 for _ in itertools.takewhile(lambda it: it[0] >= SEEN, self.accepted))

    def tokens(self, lookahead: int) -> Band:
        """Return the tokens per pass, with the product of the positions' 95 % intervals (Wilson 1927)."""
        total, chances = [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]
        for conditional in self._conditional[:lookahead]:
            for i, each in enumerate(conditional):
                chances[i] *= each
                total[i] += self.share * chances[i]
        return Band(*total)

    @cached_property
    def _conditional(self) -> list[tuple[float, float, float]]:
        """The acceptance of each position if it is reached, with its interval."""
        return [
            (accepted / reached, *metrics.wilson(accepted, reached)) if reached else (0.0, 0.0, 1.0)
            for reached, accepted in self.accepted
        ]


@dataclass(frozen=True)
class Setting:
    """The way of decoding on some hardware: sequences in a `batch`, tokens of `context` in each, and the `form` of
    multiplications. `stored`: the bytes of a weight, if it is stored in another. `measured`: whether this is the run's
    own machine, where a drafter may run eagerly."""

    hardware: Hardware
    form: str = "bfloat16"
    batch: int = 1
    context: int = 512
    stored: float | None = None
    measured: bool = False


@cache
def load_hardware() -> dict[str, Hardware]:
    """Return the devices of presets/hardware.yaml by name."""
    read: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "presets" / "hardware.yaml").read_text(encoding="utf-8"))
    return {name: _device(name, it) for name, it in read.items()}


def hardware(name: str) -> Hardware:
    """Return a device by name.

    Raises:
        PlaygroundError: there is none.
    """
    known = {it: device for it, device in load_hardware().items() if device.bandwidth}
    if name not in known:
        raise PlaygroundError(
            f"There is no hardware {name!r} in presets/hardware.yaml. Choose one of {', '.join(known)}, or add it."
        )
    return known[name]


def hardware_of(environment: Environment) -> Hardware | None:
    """Return the device that a run was measured on; None if it is in no list, or its memory was not measured."""
    for device in load_hardware().values():
        if device.match != environment.device and device.match not in (environment.device_name or ""):
            continue
        if environment.runner and environment.runner.startswith("eager"):
            device = replace(device, product_us=EAGER_US)
        if not device.bandwidth:
            if not environment.bandwidth:
                return None
            threads = environment.threads or 1
            flops = {form: rate * threads for form, rate in device.flops.items()}
            device = replace(device, bandwidth=environment.bandwidth, flops=flops)
        return device
    return None


def speedup(drafts: Drafts, at: Setting, lookahead: int) -> Band:
    """Return the expected speed-up in decoding, prefill left out. Its band takes the worst and the best of all that is
    measured with an interval or assumed as a range."""
    if not lookahead:
        return Band(1.0, 1.0, 1.0)
    tokens = drafts.tokens(lookahead)
    ranges = at.hardware.ranges
    costs = [_cost(drafts, at, lookahead, corner) for corner in itertools.product(*ranges)]
    middle = _cost(drafts, at, lookahead, tuple(sum(each) / 2 for each in ranges))
    return Band(tokens.mean / middle, tokens.low / max(costs), tokens.high / min(costs))


def best(drafts: Drafts, at: Setting) -> tuple[int, Band]:
    """Return the lookahead that gains most in the middle of the band, 0 where none gains, and its speed-up."""
    found = [(k, speedup(drafts, at, k)) for k in range(drafts.most + 1)]
    return max(found, key=lambda it: (it[1].mean, -it[0]))


def stops_paying(drafts: Drafts, at: Setting) -> int | None:
    """Return the smallest batch of BATCHES from which on no lookahead gains; None if the largest still gains."""
    gains = [batch for batch in BATCHES if best(drafts, replace(at, batch=batch))[0]]
    left = [batch for batch in BATCHES if batch > max(gains, default=0)]
    return left[0] if left else None


def seconds(shape: Shape, at: Setting, width: int, shares: Sequence[float]) -> float:
    """Return the seconds of a pass over `width` tokens of all sequences together. `shares`: the share of the bandwidth
    and of the arithmetic that it reaches, the microseconds of a product and of the pass."""
    of_bandwidth, of_arithmetic, product_us, pass_us = shares
    read = shape.values * (at.stored or BYTES[at.form]) + at.batch * at.context * shape.cache * CACHED
    memory = read / (at.hardware.bandwidth * of_bandwidth)
    arithmetic = 2 * shape.values * width / (at.hardware.rate(at.form) * of_arithmetic)
    return math.hypot(memory, arithmetic) + (shape.products * product_us + pass_us) / 1e6


def _cost(drafts: Drafts, at: Setting, lookahead: int, shares: Sequence[float]) -> float:
    """Return what a round costs in plain passes, rounds without a draft included."""
    plain = seconds(drafts.target, at, at.batch, shares)
    verify = seconds(drafts.target, at, at.batch * (lookahead + 1), shares)
    draft = 0.0
    if at.measured and drafts.eager:
        shares = (*shares[:2], sum(EAGER_US) / 2, shares[3])
    if drafts.drafter and drafts.parallel:
        draft = seconds(drafts.drafter, at, at.batch * lookahead, shares)
    elif drafts.drafter:
        draft = lookahead * seconds(drafts.drafter, at, at.batch, shares)
    return 1 - drafts.share + drafts.share * (verify + draft) / plain


def _device(name: str, it: dict[str, Any]) -> Hardware:
    flops = {form: float(rate) for form, rate in it["flops"].items()}
    given = {key: it[key] for key in ("product_us", "pass_us", "memory", "arithmetic") if key in it}
    ranges: dict[str, Any] = {key: (float(low), float(high)) for key, (low, high) in given.items()}
    return Hardware(name, it["title"], it["match"], float(it["bandwidth"]), flops, source=it["source"], **ranges)
