"""Networks on a CPU: norms, the memory layout of float32 weights, and weights packed in float16.

Norms: torch has no kernel for root mean square norms on a CPU; `CpuNorm` needs four operations.

Layout: torch stores the matrix of a linear layer by rows, one for each output. For a few tokens at once, as in a verify
pass, its float32 kernel is far faster on a matrix stored by columns (measured on x86). For one token, or for a long
prompt, the layout makes no difference.

Packed layers store weights in float16 and multiply in float32, with the kernels of FBGEMM, which torch has on x86
(Khudia et al. 2021, "FBGEMM: Enabling High-Performance Low-Precision Deep Learning Inference", arXiv 2101.05615). They
read half the memory of float32, and verifying several tokens costs little more than one. With AVX-512 the output for a
token does not depend on the other tokens of the pass, to the bit; with AVX2 alone it differs by rounding. float16 has
11 significant bits where bfloat16, the format of most published weights, has 8; weights below 0.00006 are rounded to
multiples of 0.00000006.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.cpu.int4 import BlockLinear, Int4Linear
from playground.models.cpu.native.layers import NativeLinear, of_blocks, of_drafter, of_linear
from playground.models.cpu.native.library import engine
from playground.models.fused import Beside, FusedLayer, Norm, fuse


class CpuNorm(Norm):
    """Root mean square norm in four operations, in float32: x √d w / √(|x|² + d ε), whose root is a hypotenuse."""

    _scaled: Tensor
    _least: Tensor

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__(weight, epsilon)
        width = weight.shape[-1]
        self.register_buffer("_scaled", weight.detach().float() * width**0.5, persistent=False)
        self.register_buffer("_least", torch.tensor((width * epsilon) ** 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.hypot(length, self._least) * self._scaled


def lay_out(network: nn.Module) -> None:
    """Stores the matrices of a network's linear layers by columns where that pays; values and shapes do not change."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = by_columns(module.weight.data)


def by_columns(weight: Tensor) -> Tensor:
    """Returns an equal matrix, stored by columns if it is float32 on a CPU; others, such as quantised weights, are
    returned unchanged."""
    if type(weight) is not Tensor or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return weight
    return weight.t().contiguous().t()


MOSTLY = 0.9  # the least share of the weights in linear layers at which a model is packed
ROWS = 512  # FBGEMM pads the inputs of a matrix to a multiple of this: 576 take the memory of 1024


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed in float16. It computes in float32.

    Args:
        linear: the layer, in any floating point format.
        matrix: a copy of its matrix to serve as `weight`, which drafters read.
    """

    def __init__(self, linear: nn.Linear, matrix: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._matrix = matrix
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    @property
    def nbytes(self) -> int:
        """The size of the packed matrix in bytes, padding included."""
        return math.ceil(self.in_features / ROWS) * ROWS * self.out_features * torch.half.itemsize

    @property
    def weight(self) -> Tensor:
        """The matrix, (out, in): the copy in its original format if there is one, else float32, unpacked at every
        call."""
        if self._matrix is not None:
            return self._matrix
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0].float()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, in) to (…, out), float32."""
        if x.dim() == 1:  # the kernel does not take vectors
            return self(x[None])[0]
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(device: torch.device) -> bool:
    return device.type == "cpu" and bool(engine() or "fbgemm" in torch.backends.quantized.supported_engines)


def worth_packing(model: PreTrainedModel) -> bool:
    """True where packing shrinks the model: weights outside linear layers and embeddings, such as the experts of a
    mixture, would be stored in float32."""
    modules = list(model.modules())
    embedded = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
    linear = sum(m.weight.numel() for m in modules if type(m) is nn.Linear and id(m.weight) not in embedded)
    total = sum(p.numel() for p in model.parameters() if id(p) not in embedded)
    return linear >= MOSTLY * total


def pack(network: nn.Module, drafts: bool = False) -> None:
    """Fuses layers and packs the linear layers of a network, in place and for inference alone; everything else
    computes in float32 afterwards.

    Heads also retain the matrix that they were loaded with, and embeddings retain theirs: both are in the format of the
    checkpoint, and their rows are converted when they are read.

    Args:
        drafts: whether the network drafts, and is no model of its own: it may be stored in fewer bits.
    """
    others = {module for module in network.modules() if isinstance(module, NativeLinear)}  # of another network
    models = [module for module in network.modules() if isinstance(module, PreTrainedModel)]
    heads = {model.get_output_embeddings() for model in models}
    copies: dict[int, Tensor] = {}  # by address, since heads and embeddings share matrices

    def copy_of(weight: Tensor) -> Tensor:
        """Returns a copy in its own memory: a loaded tensor is part of a mapped file, which stays mapped as long as any
        of its parts is in use."""
        return copies.setdefault(weight.data_ptr(), weight.detach().clone())

    def packed(layer: nn.Module) -> nn.Module:
        if type(layer) is nn.Linear:  # subclasses compute in other ways
            matrix = copy_of(layer.weight) if layer in heads else None
            if not engine():
                return PackedLinear(layer, matrix)
            return of_drafter(layer) if drafts and matrix is None else of_linear(layer, matrix, layer in heads)
        if isinstance(layer, BlockLinear):
            matrix = None if layer.matrix is None else copy_of(layer.matrix)
            return of_blocks(layer.blocks, layer.bias, matrix) if engine() else Int4Linear(layer)
        if isinstance(layer, Beside):
            layer.layers = nn.ModuleList(packed(part) for part in layer.joined())
            return layer.layers[0] if len(layer.layers) == 1 else layer
        return layer

    def pack_in(parent: nn.Module) -> None:
        for name, child in parent.named_children():
            setattr(parent, name, packed(child))

    for model in models:  # heads are the largest matrices, and take three times their size while they are packed
        pack_in(model)
    fuse(network, CpuNorm)
    # Without the layers themselves: a list would hold their own weights until the last is packed.
    parents = [module for module in network.modules() if not isinstance(module, (nn.Linear, BlockLinear, Beside))]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # torch packs a matrix with one thread
        list(threads.map(pack_in, parents))
    for module in network.modules():
        if isinstance(module, FusedLayer):
            _in_turn(module)
        if isinstance(module, nn.Embedding):
            _keep_format(module, copy_of(module.weight))
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    _side_by_side([m for m in network.modules() if isinstance(m, NativeLinear) and m not in others])
    _give_back()


LARGE_PAGE, ALIGNED = 2 << 20, 64  # bytes


def _side_by_side(layers: Sequence[NativeLinear]) -> None:
    """Moves the matrices of a network into one block of memory whose pages are large, where the system has such: a pass
    then needs few entries of the page table, and the processor fetches ahead across pages. Each matrix is freed as soon
    as it is moved."""
    sizes = [-(-layer.groups.numel() // ALIGNED) * ALIGNED for layer in layers]
    if not hasattr(mmap, "MADV_HUGEPAGE") or sum(sizes) < LARGE_PAGE:
        return
    try:
        memory = mmap.mmap(-1, sum(sizes) + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # the system has none
        return
    at = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % LARGE_PAGE
    for layer, size in zip(layers, sizes, strict=True):
        place = torch.frombuffer(memory, dtype=torch.uint8, count=layer.groups.numel(), offset=at)
        layer.groups = place.view(layer.groups.shape).copy_(layer.groups)
        at += size


def _in_turn(layer: FusedLayer) -> None:
    """Stores gate and up projection in the order in which the engine's passes read them."""
    both: nn.Module | None = getattr(layer, "gate_up", None)  # a mixture of experts has none
    if isinstance(both, NativeLinear):
        setattr(layer, "gate_up", both.in_turn() or both)  # noqa: B010, its type says `Beside`


def _keep_format(embedding: nn.Embedding, matrix: Tensor) -> None:
    """Leaves an embedding's matrix in its format and converts the rows that are looked up. As a parameter, the matrix
    would determine the dtype that the whole model is taken to compute in."""
    if matrix.dtype == torch.float32:
        embedding.weight.data = matrix
        return
    del embedding.weight
    embedding.weight = matrix
    embedding.register_forward_hook(lambda module, inputs, rows: rows.float())


def _give_back() -> None:
    """Returns the memory of the original weights to the system; glibc would retain most of it."""
    gc.collect()  # transformers' modules refer to each other
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl lacks it
        if trim:
            trim(0)


def is_packed(network: nn.Module) -> bool:
    return any(isinstance(module, (PackedLinear, Int4Linear, NativeLinear)) for module in network.modules())
