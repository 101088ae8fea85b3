"""Loading weights so that the memory of each tensor is given back as soon as the tensor is packed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import safe_open
from transformers import modeling_utils

# Of glibc's malloc.h. A block of at least so many bytes is returned to the system when it is freed. By itself glibc
# raises the limit with every such block, to 32 MB at most, and then keeps most of the weights that were packed.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SMALL, LARGEST = 128 * 1024, 32 * 1024 * 1024


@contextmanager
def tensors_apart() -> Iterator[None]:
    """Has transformers read each tensor into a block of its own, as it does on Windows. Elsewhere it maps whole files,
    which stay in memory while any of their tensors is in use."""
    mapped = modeling_utils.safe_open
    apart = lambda file, **options: safe_open(file, **{**options, "backend": "pread"})  # noqa: E731
    modeling_utils.safe_open = apart  # type: ignore[misc, assignment]
    _set_limits(SMALL, SMALL)
    try:
        yield
    finally:
        modeling_utils.safe_open = mapped  # type: ignore[misc]
        _set_limits(LARGEST, 2 * LARGEST)  # where glibc itself ends up, so that passes reuse their memory


def _set_limits(block: int, trim: int) -> None:
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # which musl lacks
        if mallopt:
            mallopt(M_MMAP_THRESHOLD, block)
            mallopt(M_TRIM_THRESHOLD, trim)
