"""How weights lie in a CPU's memory, where it computes in float32.

A linear layer of torch holds its matrix by rows, one for each output. For a few tokens at once, such as a verify pass
has, torch's float32 kernel reads it far faster by columns (measured on x86); for one token, and for a prompt's many, it
makes no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def lay_out(network: nn.Module) -> None:
    """Lays the matrices of its linear layers out; their values and shapes stay."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = by_columns(module.weight.data)


def by_columns(weight: Tensor) -> Tensor:
    """The same matrix, laid out by columns where that pays; another format, such as quantised weights, as it is."""
    if type(weight) is not Tensor or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return weight
    return weight.t().contiguous().t()
