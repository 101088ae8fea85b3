"""Linear layers whose weights a CPU keeps in float16 and multiplies in float32.

The kernels are FBGEMM's, which torch has on x86 (Khudia et al. 2021, "FBGEMM: Enabling High-Performance Low-Precision
Deep Learning Inference", arXiv 2101.05615). They read half the memory of float32, verifying several tokens costs little
more than one, and the output for a token is the same to the bit whatever tokens are in the pass with it. float16 has 11
significant bits where bfloat16, in which most weights are published, has 8; weights below 0.00006 are rounded to
multiples of 0.00000006.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

MOSTLY = 0.9  # the least share of the weights in linear layers at which a model is packed
ROWS = 512  # FBGEMM pads the inputs of a matrix to a multiple of this: 576 take the memory of 1024


class PackedLinear(nn.Module):
    """A linear layer, packed. It computes in float32.

    Args:
        linear: the layer, in any floating point format.
        keeps_weight: also keep the layer's own matrix, which drafters read and embeddings share.
    """

    def __init__(self, linear: nn.Linear, *, keeps_weight: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._matrix = linear.weight.detach() if keeps_weight else None
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    @property
    def nbytes(self) -> int:
        """Of the packed matrix, padding included."""
        return math.ceil(self.in_features / ROWS) * ROWS * self.out_features * torch.half.itemsize

    @property
    def weight(self) -> Tensor:
        """(out, in), in the format it was loaded in where it was kept; else float32, unpacked at every call."""
        if self._matrix is not None:
            return self._matrix
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0].float()

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out), float32."""
        if x.dim() == 1:  # which the kernel does not take
            return self(x[None])[0]
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(device: torch.device) -> bool:
    return device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def worth_packing(model: PreTrainedModel) -> bool:
    """Whether packing shrinks the model: what is not in a linear layer or an embedding, such as the experts of a
    mixture, would be kept in float32."""
    modules = list(model.modules())
    embedded = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
    linear = sum(m.weight.numel() for m in modules if type(m) is nn.Linear and id(m.weight) not in embedded)
    total = sum(p.numel() for p in model.parameters() if id(p) not in embedded)
    return linear >= MOSTLY * total


def pack(network: nn.Module) -> None:
    """Packs the linear layers of a network, in place and for inference alone; everything else computes in float32
    afterwards.

    Heads also keep the matrix that they were loaded with, and embeddings keep theirs: both are in the format of the
    checkpoint, and their rows are converted when they are read.
    """
    models = [module for module in network.modules() if isinstance(module, PreTrainedModel)]
    heads = {model.get_output_embeddings() for model in models}

    def pack_in(parent: nn.Module) -> None:
        for name, child in parent.named_children():
            if type(child) is nn.Linear:  # no subclass, which computes in its own way
                setattr(parent, name, PackedLinear(child, keeps_weight=child in heads))

    # Without the layers themselves: a list would hold their own weights until the last is packed. The head, which is
    # the largest matrix and takes three times its size while it is packed, comes first.
    parents = [module for module in network.modules() if not isinstance(module, nn.Linear)]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # torch packs a matrix with one thread
        list(threads.map(pack_in, parents))
    for module in network.modules():
        if isinstance(module, nn.Embedding) and module.weight.dtype != torch.float32:
            _keep_format(module)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()


def _keep_format(embedding: nn.Embedding) -> None:
    """Leaves its matrix as it is and converts the rows that are looked up. As a parameter, the matrix would name the
    format that the whole model is taken to compute in."""
    matrix = embedding.weight.detach()
    del embedding.weight
    embedding.weight = matrix
    embedding.register_forward_hook(lambda module, inputs, rows: rows.float())


def is_packed(network: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in network.modules())
