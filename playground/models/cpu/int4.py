"""Linear layers of four bits, which a CPU multiplies without unpacking them first.

The kernel is torch's own. It takes weights in groups of 32, each with a scale and a zero point: what the blocks of GGUF
have, so nothing is quantised a second time. Inputs, scales and outputs are bfloat16, sums float32. For float32 inputs
torch has a kernel, too, which takes forty times as long.

The output for a token is the same to the bit whatever tokens are in the pass with it.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from playground.models.cpu.blocks import GROUP, BlockLinear

VECTORISED = ("AVX2", "AVX512")  # what torch has vectorised the kernel for


class Int4Linear(nn.Module):
    """A linear layer of four bits: float32 in, float32 out."""

    def __init__(self, layer: BlockLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        q, scale, zero = layer.decoded()
        # No buffers, which would be converted with the model.
        self._matrix = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)
        self._scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).bfloat16().contiguous()  # (in / 32, out, 2)
        self._bias = None if layer.bias is None else layer.bias.float()

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out), float32."""
        rows = x.reshape(-1, self.in_features).bfloat16()
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._matrix, GROUP, self._scales).float()
        out = out.view(*x.shape[:-1], self.out_features)
        return out if self._bias is None else out + self._bias


def multiplies_blocks(device: torch.device) -> bool:
    """Whether torch has a fast kernel for the device; for Windows it was compiled without one."""
    fast = torch.backends.cpu.get_cpu_capability() in VECTORISED and sys.platform != "win32"
    return device.type == "cpu" and fast


def has_int4(network: nn.Module) -> bool:
    return any(isinstance(module, Int4Linear) for module in network.modules())
