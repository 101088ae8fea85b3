"""Weights of eight or four bits on CUDA, multiplied by kernels that torch itself has, which graphs capture.

Only weights are rounded: a row of eight bits has one scale, GROUP values of four bits have a scale and a zero (the form
of tinygemm, https://pytorch.org/blog/accelerating-generative-ai-2/). They are used where a trial, with random matrices
of the model's shapes, agrees with bfloat16 and is faster; bitsandbytes quantises elsewhere (models/quantised.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import on_one_line
from playground.models.device import median_seconds

DEVICES = ("cuda",)
CPU = ("cpu",)  # devices with the CPU's form of the kernels
GROUP = 128  # values of four bits with one scale
INNER = 8  # the kernel of four bits takes multiples of 16 INNER columns, as GROUP is
ROWS = 16  # and multiples of so many rows, 8 on CUDA
# The most that products may differ from those of bfloat16, as a share of them. By rounding alone, with random weights,
# it is 0.005 and 0.07.
APART = {8: 0.03, 4: 0.25}
COPIES = 4  # of each shape in the trial, so that its weights do not stay in the device's cache
FEW = (1, 8)  # tokens of the trial
MANY = 64  # tokens from which on a matrix of eight bits is converted as a whole


class WeightOnlyLinear(nn.Module):
    """A linear layer with weights of 8 or 4 bits, on the layer's device and in bfloat16."""

    weight: Tensor  # (out, in) int8, or packed
    scales: Tensor  # (out,); or (groups, out, 2), scale and zero of each group

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        self.bits, self.out_features, self.in_features = bits, layer.out_features, layer.in_features
        weight, scales = (_of_eight if bits == 8 else _of_four)(layer.weight.detach().float())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales.to(torch.bfloat16))
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, in) to (…, out)."""
        rows = x.reshape(-1, self.in_features).contiguous()
        if self.bits == 4:
            rows = F.pad(rows, (0, missing)) if (missing := -self.in_features % GROUP) else rows
            out = _multiply(rows, self.weight, self.scales)[:, : self.out_features]
        elif len(rows) > MANY:
            out = F.linear(rows, self.weight.to(x.dtype)) * self.scales
        else:
            out = torch._weight_int8pack_mm(rows, self.weight, self.scales)
        out = out.reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


def _of_eight(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = (weight.abs().amax(1) / 127).clamp(min=1e-12).bfloat16()
    return (weight / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def _of_four(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds to numbers n from 0 to 15, which stand for (n - 8) scale + zero."""
    groups = F.pad(weight, (0, -weight.shape[1] % GROUP, 0, -weight.shape[0] % ROWS)).unflatten(1, (-1, GROUP))
    least, most = groups.amin(2), groups.amax(2)
    scale = ((most - least) / 15).clamp(min=1e-12).bfloat16()
    zero = (least + 8 * scale.float()).bfloat16()
    numbers = ((groups - zero.float()[:, :, None]) / scale.float()[:, :, None]).round().add_(8).clamp_(0, 15)
    scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
    return _packed(numbers.flatten(1).to(torch.int32)), scales


def _packed(numbers: Tensor) -> Tensor:
    """Packs (out, in) int32 numbers from 0 to 15 as the kernel of their device takes them."""
    if numbers.device.type in CPU:
        return torch._convert_weight_to_int4pack_for_cpu(numbers, INNER)
    return torch._convert_weight_to_int4pack((numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8), INNER)


def _multiply(rows: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    multiply = torch._weight_int4pack_mm_for_cpu if rows.device.type in CPU else torch._weight_int4pack_mm
    return multiply(rows, weight, GROUP, scales)


def quantise(model: PreTrainedModel, bits: int, device: torch.device) -> None:
    """Replaces the linear layers of a model on the CPU, but for its head, and moves all to the device; one layer is
    there whole at a time."""
    head = model.get_output_embeddings()
    parents = [module for module in model.modules() if not isinstance(module, nn.Linear)]
    for parent in parents:
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and layer is not head:
                setattr(parent, name, WeightOnlyLinear(layer.to(device), bits))
    model.to(device)  # type: ignore[arg-type]  # its decorator hides `self`


def bits_of(model: nn.Module) -> int | None:
    """Returns the bits of the layers that `quantise` made; None without any."""
    return next((layer.bits for layer in model.modules() if isinstance(layer, WeightOnlyLinear)), None)


@torch.inference_mode()
def why_not(shapes: Iterable[Sequence[int]], bits: int, dtype: torch.dtype, device: torch.device) -> str:
    """Multiplies by random matrices of these shapes, (out, in), whole and quantised. Returns why the quantised ones are
    not to be used, as a clause; "" where they agree and are faster."""
    if dtype != torch.bfloat16:
        return "torch's kernels compute in bfloat16 alone"
    noise = torch.Generator(device).manual_seed(0)
    like: dict[str, Any] = {"device": device, "dtype": dtype}
    whole = [nn.Linear(n, m, bias=False, **like) for m, n in [*shapes] * COPIES]
    taken = [0.0, 0.0]
    try:
        few = [WeightOnlyLinear(layer, bits) for layer in whole]
        for tokens in FEW:
            given = [torch.randn(tokens, layer.in_features, generator=noise, **like) for layer in whole]
            for expected, found in zip(_products(whole, given), _products(few, given), strict=True):
                if not (differs := float((found - expected).norm() / expected.norm())) <= APART[bits]:
                    return f"torch's int{bits} products differ from those of bfloat16 (by {differs:.2g})"
            taken[0] += _seconds(partial(_products, whole, given), device)
            taken[1] += _seconds(partial(_products, few, given), device)
    except Exception as error:  # kernels and drivers raise exceptions of any type
        return f"torch's int{bits} kernel failed ({on_one_line(error, 120)})"
    return "" if taken[1] < taken[0] else f"torch's int{bits} products took longer than those of bfloat16"


def _products(layers: Iterable[nn.Module], given: Sequence[Tensor]) -> list[Tensor]:
    return [layer(x) for layer, x in zip(layers, given, strict=True)]


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Returns the median time of some work on a CUDA device, captured, so that the host does not count."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph, stream=side):
        work()
    return median_seconds(graph.replay, device)
