"""The fixed widths of static passes, and buffers of fixed address that the host fills."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WIDTHS = (1, 4, 8, 16, 32, 64)  # tokens of a pass
MOST = WIDTHS[-1]


class Inputs:
    """A buffer of fixed address that the host writes without waiting: the copy starts from pinned memory. Whoever sends
    twice must have read a result of the device between.

    `rows`: (rows, columns), on the device.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(rows, columns, dtype=dtype, device=device)
        self._host = torch.zeros(rows, columns, dtype=dtype, pin_memory=device.type == "cuda")

    def send(self, *rows: Sequence[int]) -> None:
        """Sets the first columns of each row."""
        self._host[:, : len(rows[0])] = torch.tensor([list(row) for row in rows])
        self.rows.copy_(self._host, non_blocking=True)

    def send_rows(self, whole: Tensor) -> None:
        self._host.copy_(whole)
        self.rows.copy_(self._host, non_blocking=True)
