"""Memory in large pages: a pass then needs few entries of the page table, and the processor fetches ahead in them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

LARGE_PAGE, ALIGNED = 2 << 20, 64  # bytes


def large_pages(sizes: Sequence[int]) -> list[Tensor] | None:
    """Returns pieces of so many bytes, (size,) uint8, all zero, side by side from the start of a large page on. None
    if all are less than a page, and where the system has none."""
    padded = [-(-size // ALIGNED) * ALIGNED for size in sizes]
    if not hasattr(mmap, "MADV_HUGEPAGE") or sum(padded) < LARGE_PAGE:
        return None
    try:
        memory = mmap.mmap(-1, sum(padded) + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    at, pieces = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % LARGE_PAGE, []
    for size, room in zip(sizes, padded, strict=True):
        pieces.append(torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at))
        at += room
    return pieces
