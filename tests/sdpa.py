"""What torch does with a mask before its memory-efficient kernel sees it, the only CUDA kernel that takes masks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNED = 8  # elements, of the mask's rows


def preprocessed(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """`preprocess_mask` of aten/native/transformers/attention.cpp."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    if mask.stride(-1) != 1 or any(stride % ALIGNED for stride in mask.stride()[:-1]):
        entries = mask.shape[-1]
        mask = F.pad(mask, (0, ALIGNED - entries % ALIGNED))[..., :entries]
    return mask.expand(*query.shape[:3], key.shape[2])


class CudaMasks:
    """Takes the place of `scaled_dot_product_attention` and refuses the masks that the kernel refuses.

    Attributes:
        masked: calls with a mask.
        padded: those whose mask torch copies first, since its rows are not aligned.
        entries: keys and values that all calls were given, in numbers.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.masked = self.padded = self.entries = 0
        self._attend = F.scaled_dot_product_attention
        monkeypatch.setattr(F, "scaled_dot_product_attention", self)

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args, **kwargs
    ) -> Tensor:
        self.entries += key.numel() + value.numel()
        if attn_mask is not None:
            self.masked += 1
            seen = preprocessed(attn_mask, query, key)
            self.padded += seen.data_ptr() != attn_mask.data_ptr()
            if seen.stride(-1) != 1:
                raise RuntimeError("(*bias): last dimension must be contiguous")
        return self._attend(query, key, value, attn_mask, *args, **kwargs)
