"""A model that is too large for one GPU, spread over all of them.

accelerate puts whole layers on each GPU, and moves what goes from one to the next. Never tried on two real GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from playground.models.device import free_bytes

FIRST, OTHERS = 0.7, 0.9  # shares of free memory that weights may take; logits and drafter are on the first GPU
COST = (
    "Its layers lie on several GPUs, of which one computes while the others wait; its passes are not compiled, and "
    "drafters that read its hidden states cannot be used."
)


def room(device: torch.device) -> dict[Any, int]:
    """Returns the bytes of weights that each GPU can take, by its number; none where `device` names one, or there is
    only one."""
    count = torch.cuda.device_count() if device.type == "cuda" and device.index is None else 0
    if count < 2:
        return {}
    return {i: int((OTHERS if i else FIRST) * free_bytes(torch.device("cuda", i))) for i in range(count)}


def needs_several(weights: float, device: torch.device) -> bool:
    """True where so many bytes of weights are too many for one GPU, and not for all together."""
    return sum(room(device).values()) >= weights > free_bytes(device)


def is_spread(model: PreTrainedModel) -> bool:
    """True where accelerate has put a model's layers on several devices."""
    return len(set(getattr(model, "hf_device_map", {}).values())) > 1
