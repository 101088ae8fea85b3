"""How many bytes a device's memory moves in a second, measured by a copy: the limit of decoding one sequence."""

from __future__ import annotations

import math
from functools import cache

import torch

from playground.decoding.clock import Clock

BYTES = 64 * 2**20  # of the source and of the copy; more together than most caches hold
COPIES = 6  # of which the fastest counts, since other programs only make one slower


@cache
def bandwidth(device: torch.device) -> float:
    """Bytes per second, those read and those written. Measured once a process."""
    source = torch.ones(BYTES, dtype=torch.uint8, device=device)
    copy, clock = torch.empty_like(source), Clock(device)
    fastest = math.inf
    for _ in range(COPIES):
        start = clock()
        copy.copy_(source)
        fastest = min(fastest, clock() - start)
    return 2 * BYTES / fastest
