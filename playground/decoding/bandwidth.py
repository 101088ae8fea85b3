"""How many bytes a device's memory moves in a second, measured by a copy: the limit of decoding one sequence."""

from __future__ import annotations

import time
from functools import cache

import torch
from torch import Tensor

from playground.models.device import free_bytes

CPU_BYTES, GPU_BYTES = (
    64 * 2**20,
    2**30,
)  # of the source and of the copy: more than caches hold, and than a launch takes
SHARE = 4  # at most one in so many of the bytes that are free
COPIES = 6  # of which the fastest counts, since other programs only make one slower


@cache
def bandwidth(device: torch.device) -> float:
    """Bytes per second, those read and those written. Measured once a process."""
    size = min(GPU_BYTES if device.type == "cuda" else CPU_BYTES, free_bytes(device) // SHARE)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * size / min(_seconds(copy, source) for _ in range(COPIES))


def _seconds(copy: Tensor, source: Tensor) -> float:
    """What one copy takes; on a GPU by its own clock, without the launch."""
    if source.device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(source.device):
            start.record()
            copy.copy_(source)
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1e3
    start_s = time.perf_counter()
    copy.copy_(source)
    if source.device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - start_s
