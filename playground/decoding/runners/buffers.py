"""Inputs of passes: fixed widths, buffers of fixed address that the host fills, and the masks of draft trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from playground.decoding.runners.base import FULL
from playground.decoding.transfer import pinned

WIDTHS = (1, 4, 8, 16, 32, 64)  # tokens of a pass; equal in all lanes, so that they read a short prompt alike
WIDER = (128, 264)  # for larger trees. The last holds the largest, of 256 nodes, and the token before it.
MOST = WIDER[-1]


def width_of(tokens: int) -> int:
    """Returns the width of a pass over `tokens`, which are at most MOST."""
    return next(width for width in (*WIDTHS, *WIDER) if width >= tokens)


def widths_up_to(tokens: int) -> tuple[int, ...]:
    """Returns WIDTHS, and those of WIDER that a pass over `tokens` or fewer can have."""
    return (*WIDTHS, *(width for width in WIDER if tokens > WIDTHS[-1] and width <= width_of(tokens)))


class Inputs:
    """A buffer of fixed address that the host writes without waiting. Each copy starts from pinned memory of its own,
    which PyTorch holds until the device has read it.

    `rows`: (rows, columns), on the device.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(rows, columns, dtype=dtype, device=device)

    def send(self, *rows: Sequence[int]) -> None:
        """Sets all rows to these numbers."""
        self.send_rows(torch.tensor([list(row) for row in rows]))

    def send_rows(self, whole: Tensor) -> None:
        """Sets all rows to a (rows, columns) tensor on the host."""
        self.rows.copy_(pinned(whole, self.rows.device), non_blocking=True)


def ancestry(tree: Sequence[int]) -> np.ndarray:
    """Returns a (k, k) bool array, true at (i, j) where token j is token i or one of its ancestors. `tree`: the parent
    of each token, -1 for none."""
    sees = np.eye(len(tree), dtype=bool)
    for i, parent in enumerate(tree):
        if parent >= 0:
            sees[i] |= sees[parent]
    return sees


def tree_masks(
    cached: int, before: int, tree: Sequence[int], windows: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the masks and positions of a pass over `before` tokens followed by a tree. A token of the tree attends to
    the sequence and to its own branch, and its position is the end of the sequence plus its depth.

    Args:
        cached: tokens in the cache.
        tree: the parent of each token of the tree, -1 for none.
        windows: the sliding window of each layer type, in tokens; 0 for full attention.

    Returns:
        For each layer type a (queries, keys) bool mask, true where the query attends to the key; and the positions of
        the tokens fed, (queries,).
    """
    start = cached + before
    ancestors = torch.from_numpy(ancestry(tree))
    sees = torch.ones(before + len(tree), start + len(tree), dtype=torch.bool).tril(cached)
    sees[before:, start:] = ancestors
    positions = torch.cat([torch.arange(start), start - 1 + ancestors.sum(1)])
    masks = {}
    for kind, window in windows.items():
        if kind == FULL:
            masks[kind] = sees
        else:  # the cache gives the layer at most the last window - 1 entries in addition to the tokens fed
            within = sees & (positions[cached:, None] - positions < window)
            masks[kind] = within[:, max(0, cached - window + 1) :]
    return masks, positions[cached:]


def additive(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turns a (queries, keys) mask, true where a query attends to a key, into the (1, 1, queries, keys) mask in `dtype`
    that a model adds to its attention scores."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)[None, None]
