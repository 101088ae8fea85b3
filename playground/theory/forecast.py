"""A forecast of the speed-up on hardware that one does not own.

Acceptance is the drafter's, and comes from a run with a constant lookahead: a policy such as `auto` goes on where the
drafter is sure, and by what its own machine costs, so that its acceptance by depth is that of other drafts. Time is the
machine's, and comes from a roofline: a pass takes as long as its bytes take through the memory and its operations
through the arithmetic, which overlap in part, and some microseconds for each product of a matrix and for the loop. How
near real passes come to the peaks is assumed, as a range, so that a forecast is a band, whose low end alone says
whether drafting pays.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from playground import ROOT, metrics, validation
from playground.errors import PlaygroundError, check
from playground.theory.queueing import Band
from playground.trace import Environment, Shape

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.625}  # of a weight
CACHED = 2.0  # bytes of a key or value
EAGER_US = (20.0, 60.0)  # microseconds of a product in passes that torch runs eagerly
SEEN = 5  # drafts that must have reached a position

Format = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4", "int16"]
Positive = Annotated[float, Field(gt=0)]
Range = tuple[Positive, Positive]


@dataclass(frozen=True)
class Hardware:
    """A device, as presets/hardware.yaml or a file of one's own has it, where each field is explained. `memory`,
    `arithmetic`: the shares of `bandwidth` and `tflops` that passes reach; docs/measurements.md."""

    title: str
    tflops: Mapping[Format, Positive]
    bandwidth: Positive | None = None
    match: str = ""
    product_us: Range = (1.5, 10.0)
    pass_us: Range = (50.0, 600.0)
    memory: Range = (0.6, 0.9)
    arithmetic: Range = (0.3, 0.8)
    source: str = "its owner"

    def __post_init__(self) -> None:
        check(
            not {"bfloat16", "float16"}.isdisjoint(self.tflops),
            f"tflops of {self.title} should have bfloat16 or, where it has none, float16.",
        )
        for name in ("product_us", "pass_us", "memory", "arithmetic"):
            low, high = getattr(self, name)
            check(low <= high, f"{name} of {self.title} should be [low, high]; it is [{low:g}, {high:g}].")

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The quantities that are assumed as a range, low and high: the last argument of `seconds`."""
        return self.memory, self.arithmetic, self.product_us, self.pass_us

    def format(self, asked: str) -> str:
        """Return the format of weights in which it computes: float16 for bfloat16 where it has no bfloat16."""
        return "float16" if asked == "bfloat16" and "bfloat16" not in self.tflops else asked

    def rate(self, form: str) -> float:
        """Return the operations a second in a format, or in 16 bits where the device has no faster way for it."""
        rates = {str(name): rate for name, rate in self.tflops.items()}
        return 1e12 * (rates.get(form) or rates[self.format("bfloat16")])


@dataclass(frozen=True)
class Drafts:
    """A way of drafting, as a run measured it.

    `accepted`: for each position of a draft, how many drafts reached it and how many of these had it accepted. `share`:
    of the rounds that drafted. `lookahead`: that of the run, a constant one. `drafter`: None where it has no weights.
    `parallel`: whether one pass of it gives a whole draft. `measured`: the speed-up that the run had, the prefill left
    out. `eager`: whether the drafter ran eagerly there.
    """

    name: str
    accepted: tuple[tuple[int, int], ...]
    share: float
    lookahead: int
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


@dataclass(frozen=True)
class Advice:
    """The lookahead whose band has the highest low end, with its `band`. `pays`: the low end is above 1. `never`: no
    lookahead's high end is."""

    lookahead: int
    band: Band
    pays: bool
    never: bool


@dataclass(frozen=True)
class Checked:
    """What the same formulas say of the machine of the run, `expected`, and what it `measured`."""

    expected: Band
    measured: float

    @property
    def holds(self) -> bool:
        return self.expected.low <= self.measured <= self.expected.high


@cache
def load_hardware() -> dict[str, Hardware]:
    """Return the devices of presets/hardware.yaml by name."""
    return _read(ROOT / "presets" / "hardware.yaml")


def hardware(name: str) -> list[Hardware]:
    """Return a device by name, or those of a file.

    Raises:
        PlaygroundError: there is none, or the file is wrong.
    """
    known = {it: device for it, device in load_hardware().items() if device.bandwidth}
    if name in known:
        return [known[name]]
    path = Path(name).expanduser()
    if not path.is_file():
        raise PlaygroundError(
            f"There is no hardware {name!r}. Choose one of {', '.join(known)}, or give a file with your own, in the "
            "form of presets/hardware.yaml."
        )
    try:
        found = _read(path)
        lacking = [it for it, device in found.items() if device.bandwidth is None]
        check(not lacking, f"{''.join(lacking[:1])}.bandwidth should be there, and is missing.")
        check(bool(found), "the file should name a device.")
    except PlaygroundError as error:
        raise PlaygroundError(f"{path.name}: {error}") from None
    return [*found.values()]


def hardware_of(environment: Environment, more: Sequence[Hardware] = ()) -> Hardware | None:
    """Return the device that a run was measured on; None if it is in no list, or its memory was not measured. `more`:
    devices that are tried before those of presets/hardware.yaml."""
    for device in (*more, *load_hardware().values()):
        named = re.search(rf"\b{re.escape(device.match)}\b", environment.device_name or "") if device.match else None
        if not named and device.match != environment.device:
            continue
        if environment.runner and environment.runner.startswith("eager"):
            device = replace(device, product_us=EAGER_US)
        if device.bandwidth is None:
            if not environment.bandwidth:
                return None
            tflops = {form: rate * (environment.threads or 1) for form, rate in device.tflops.items()}
            device = replace(device, bandwidth=environment.bandwidth / 1e9, tflops=tflops)
        return device
    return None


def checked(drafts: Drafts, environment: Environment, more: Sequence[Hardware] = ()) -> Checked | None:
    """Return the forecast of a run on its own machine beside what it measured; None where either is unknown."""
    device, dtype = hardware_of(environment, more), environment.dtype or "bfloat16"
    if device is None or drafts.measured is None:
        return None
    (*_, computes) = re.findall(r"float32|bfloat16|float16|int\d+", dtype) or ["bfloat16"]
    at = Setting(device, computes, context=128, stored=BYTES.get(dtype.split()[0], 2.0), measured=True)
    return Checked(speedup(drafts, at, drafts.lookahead), drafts.measured)


def speedup(drafts: Drafts, at: Setting, lookahead: int) -> Band:
    """Return the expected speed-up in decoding, prefill left out. Its band takes the worst and the best of all that is
    measured with an interval or assumed as a range."""
    tokens = drafts.tokens(lookahead)
    ranges = at.hardware.ranges
    costs = [_cost(drafts, at, lookahead, corner) for corner in itertools.product(*ranges)]
    middle = _cost(drafts, at, lookahead, tuple(sum(each) / 2 for each in ranges))
    return Band(tokens.mean / middle, tokens.low / max(costs), tokens.high / min(costs))


def best(drafts: Drafts, at: Setting) -> Advice:
    """Return the lookahead to use, by the low end of its band: what is gained at the least."""
    bands = {k: speedup(drafts, at, k) for k in range(1, drafts.most + 1)}
    lookahead = max(bands, key=lambda k: (bands[k].low, -k))
    never = all(band.high <= 1 for band in bands.values())
    return Advice(lookahead, bands[lookahead], bands[lookahead].low > 1, never)


def seconds(shape: Shape, at: Setting, width: int, shares: Sequence[float]) -> float:
    """Return the seconds of a pass over `width` tokens of all sequences together. `shares`: the share of the bandwidth
    and of the arithmetic that it reaches, the microseconds of a product and of the pass."""
    of_bandwidth, of_arithmetic, product_us, pass_us = shares
    assert at.hardware.bandwidth, "only of the machine of a run it is measured"
    read = shape.values * (at.stored or BYTES[at.form]) + at.batch * at.context * shape.cache * CACHED
    memory = read / (1e9 * at.hardware.bandwidth * of_bandwidth)
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


def _read(path: Path) -> dict[str, Hardware]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML, too
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlaygroundError(f"it is neither YAML nor JSON ({' '.join(str(error).split())}).") from None
    return validation.read(dict[str, Hardware], data)
