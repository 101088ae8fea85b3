"""Attention masks and positions of a draft tree that is verified in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from playground.decoding.runners.base import FULL


def ancestry(tree: Sequence[int]) -> torch.Tensor:
    """(k, k), true where token j is token i or one of its ancestors. `tree`: the parent of each token, -1 for none."""
    sees = torch.eye(len(tree), dtype=torch.bool)
    for i, parent in enumerate(tree):
        if parent >= 0:
            sees[i] |= sees[parent]
    return sees


def tree_masks(
    cached: int, before: int, tree: Sequence[int], windows: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A pass over `before` tokens followed by a tree. A token of the tree attends to the sequence and to its own
    branch, and its position is the end of the sequence plus its depth.

    Args:
        cached: tokens that the cache holds.
        tree: as for `ancestry`.
        windows: the sliding window of each layer type, in tokens; 0 for full attention.

    Returns:
        For each layer type a mask (queries, keys), true where the query attends to the key; and the positions of the
        tokens fed.
    """
    start = cached + before
    ancestors = ancestry(tree)
    sees = torch.ones(before + len(tree), start + len(tree), dtype=torch.bool).tril(cached)
    sees[before:, start:] = ancestors
    positions = torch.cat([torch.arange(start), start - 1 + ancestors.sum(1)])
    masks = {}
    for kind, window in windows.items():
        if kind == FULL:
            masks[kind] = sees
        else:  # the cache hands the layer at most the last window - 1 entries besides the tokens fed
            within = sees & (positions[cached:, None] - positions < window)
            masks[kind] = within[:, max(0, cached - window + 1) :]
    return masks, positions[cached:]


def additive(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(queries, keys), true where a query attends to a key, as the (1, 1, queries, keys) mask that a model adds to its
    attention scores."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)[None, None]
