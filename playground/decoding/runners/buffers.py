"""The fixed widths of static passes, and buffers of fixed address that the host fills."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from playground.decoding.transfer import pinned

WIDTHS = (1, 4, 8, 16, 32, 64)  # tokens of a pass; the same in all lanes, which so read a short prompt alike
WIDER = (128, 264)  # of larger trees. The last holds the largest, of 256 nodes, and the token before it.
MOST = WIDER[-1]


def width_of(tokens: int) -> int:
    """The width of a pass over so many tokens, at most MOST."""
    return next(width for width in (*WIDTHS, *WIDER) if width >= tokens)


def widths_up_to(tokens: int) -> tuple[int, ...]:
    """WIDTHS, and those of WIDER that a pass over so many tokens or fewer can have."""
    return (*WIDTHS, *(width for width in WIDER if tokens > WIDTHS[-1] and width <= width_of(tokens)))


class Inputs:
    """A buffer of fixed address that the host writes without waiting. Each copy starts from pinned memory of its own,
    which PyTorch keeps until the device has read it.

    `rows`: (rows, columns), on the device.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(rows, columns, dtype=dtype, device=device)

    def send(self, *rows: Sequence[int]) -> None:
        """Sets all rows."""
        self.send_rows(torch.tensor([list(row) for row in rows]))

    def send_rows(self, whole: Tensor) -> None:
        self.rows.copy_(pinned(whole, self.rows.device), non_blocking=True)
