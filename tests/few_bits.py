"""torch's CUDA kernels for weights of eight and four bits, on a CPU: the same layouts, types and limits; and plain
layers with the same rounded weights.

The kernels: aten/src/ATen/native/cuda/int8mm.cu and int4mm.cu. Products are summed in float64 here and there, so that
both give the same bits.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playground.models import weight_only


def product(x: Tensor, weight: Tensor) -> Tensor:
    return (x.double() @ weight.double().T).bfloat16()


def int8_product(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    assert x.dtype == torch.bfloat16 and x.is_contiguous() and (weight.dtype, weight.dim()) == (torch.int8, 2)
    assert (scales.shape, x.shape[1:]) == (weight.shape[:1], weight.shape[1:])
    return product(x, weight.double() * scales[:, None])


def int4_packed(pairs: Tensor, inner: int) -> Tensor:
    """Packs (n, k / 2) bytes, whose higher halves are the even columns, to (n / 8, k / 16 inner, 32, inner / 2)."""
    assert (pairs.dtype, pairs.dim()) == (torch.uint8, 2) and pairs.is_contiguous() and inner in (2, 4, 8)
    rows, half = pairs.shape
    assert 2 * half % (16 * inner) == 0
    tiles = F.pad(pairs, (0, 0, 0, -rows % 8)).view(-1, 8, half // (8 * inner), inner // 2, 4, 4)
    of_lanes = tiles.permute(0, 2, 1, 5, 3, 4).flatten(2, 3).long()  # (tile, outer, lane, word, byte)
    halves = torch.cat([of_lanes >> 4, of_lanes & 15], dim=-1)
    return (halves << 4 * torch.arange(8)).sum(-1).to(torch.int32)


def int4_product(x: Tensor, weight: Tensor, group: int, scales: Tensor) -> Tensor:
    assert (x.dtype, x.dim()) == (torch.bfloat16, 2) and x.is_contiguous() and x.data_ptr() % 16 == 0
    assert weight.dtype == torch.int32 and weight.is_contiguous()
    tiles, outer, lanes, words = weight.shape
    n, k = 8 * tiles, x.shape[1]
    assert words in (1, 2, 4) and (lanes, outer) == (32, k // (32 * words))
    assert group in (32, 64, 128, 256) and k % group == 0
    assert scales.dtype == torch.bfloat16 and scales.shape == (k // group, n, 2)
    halves = (weight.long()[..., None] >> 4 * torch.arange(8)) & 15
    numbers = halves.view(tiles, outer, 8, 4, words, 2, 4).permute(0, 2, 1, 4, 6, 3, 5).reshape(n, -1, group)
    scale, zero = scales.float().permute(2, 1, 0)[..., None]
    return product(x, ((numbers - 8) * scale + zero).bfloat16().flatten(1))


def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `weight_only` on a CPU what it is on CUDA."""
    monkeypatch.setattr(weight_only, "CPU", ())
    monkeypatch.setattr(torch, "_weight_int8pack_mm", int8_product)
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", int4_packed)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", int4_product)


class Rounded(nn.Module):
    """A linear layer whose weights are rounded to so many bits, as a plain matrix."""

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        self.bits, self.bias = bits, layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = (_to_eight if bits == 8 else _to_four)(layer.weight.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        out = product(x, self.weight)
        return out if self.bias is None else out + self.bias


def _to_eight(weight: Tensor) -> Tensor:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().double()
    return (weight / scale).round().clamp(-127, 127) * scale


def _to_four(weight: Tensor) -> Tensor:
    rows = []
    for row in weight:
        parts = []
        for part in row.split(weight_only.GROUP):
            padded = F.pad(part, (0, weight_only.GROUP - len(part)))
            scale = ((padded.max() - padded.min()) / 15).bfloat16().float()
            zero = (padded.min() + 8 * scale).bfloat16().float()
            parts.append((((part - zero) / scale).round().clamp(-8, 7) * scale + zero).bfloat16())
        rows.append(torch.cat(parts))
    return torch.stack(rows)
