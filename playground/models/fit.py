"""Which pairs this machine can run now, and which one it starts with. Decided before loading; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from playground.errors import PlaygroundError
from playground.models.device import BITS, free_bytes, gigabytes, resolve_device, resolve_dtype
from playground.models.fetch import hub, starter
from playground.models.load import STARTER
from playground.models.quantised import STORED
from playground.presets import NATIVE, Pair, folder_of

FIRST_GB = 20  # the most to download before the first run
ROOM = 1.3  # times the weights' size: KV caches and activations
WHOLE = 0.15  # share of the weights that is not quantised (embedding and head) in a model of some billion parameters
MODELS = ("assistant", "universal")  # methods that run a whole model for each drafted token


def fits(pair: Pair, device: torch.device) -> tuple[bool, str]:
    """Whether the pair can run on the device now, and why in a few words. Asks the hub only if files are missing, for
    at most three seconds."""
    needed, free = _needed(pair, device), free_bytes(device)
    memory = f"needs {gigabytes(needed)}, {gigabytes(free)} free"
    if needed > free:
        return False, memory
    missing = [name for name in pair.models if not _here(name)]
    if not missing:
        return True, memory
    if missing == [STARTER]:
        return True, f"{memory}, {gigabytes(starter.WHEEL_BYTES)} to fetch"
    if pair.gated and not hub.has_token():
        return False, "gated: needs a token (accept the terms on the hub, then set HF_TOKEN)"
    if not hub.reachable():
        return False, "not in the local hub cache, and the hub cannot be reached"
    return True, f"{memory}, up to {gigabytes(1e9 * pair.size_gb)} to fetch"


def default_pair(pairs: Mapping[str, Pair]) -> Pair:
    """The pair to start with: the starter, or on a CUDA device a larger one.

    On CUDA, the largest ungated pair that fits, is no larger than FIRST_GB, and whose default drafter is a small
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
        able = [pair for pair in simple if pair.size_gb <= FIRST_GB and fits(pair, device)[0]]
        if able:
            return max(able, key=lambda pair: (_launches_little(pair), pair.size_gb))
    return pairs.get(STARTER) or min(pairs.values(), key=lambda pair: pair.size_gb)


def _launches_little(pair: Pair) -> bool:
    """Whether the pair's default drafter runs a few layers for a draft token, or none, instead of a whole model."""
    return pair.drafts_by(pair.drafter) not in MODELS


def _needed(pair: Pair, device: torch.device) -> float:
    """Bytes for the pair's weights in its dtype, with ROOM."""
    share = resolve_dtype(pair.dtype, device).itemsize / 2
    if pair.dtype in BITS:
        share = WHOLE * share + (1 - WHOLE) * STORED[BITS[pair.dtype]] / 16
    return ROOM * 1e9 * pair.size_gb * share


def _here(name: str) -> bool:
    if name == STARTER:
        return starter.cached() is not None
    return folder_of(name).is_dir() or hub.cached(name)
