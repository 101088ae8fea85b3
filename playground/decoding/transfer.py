"""Copies numbers to the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def to_device(values: Sequence[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the values, numbers or a tensor of any shape, as a tensor on the device. A copy from ordinary memory
    would first wait for all work that a GPU has queued; one from pinned memory is queued like the work, and PyTorch
    holds the memory until then."""
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the tensor in memory that the device can copy from while the host continues."""
    return tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
