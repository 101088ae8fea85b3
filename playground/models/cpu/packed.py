"""Linear layers whose weights a CPU keeps in float16 and multiplies in float32, by FBGEMM's kernels, which torch has on
x86 (Khudia et al. 2021, "FBGEMM: Enabling High-Performance Low-Precision Deep Learning Inference", arXiv 2101.05615).

They read half the memory that float32 takes, several tokens at once cost little more than one, and what comes out for
a token does not depend on the tokens beside it, to the bit. Float16 keeps eleven binary digits of a weight where
bfloat16, in which most weights are published, keeps eight; it rounds those below 0.00006 to multiples of 0.00000006.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class PackedLinear(nn.Module):
    """A linear layer of float32, packed.

    Args:
        keeps_weight: keep the float32 matrix, too, which others share or read.
    """

    def __init__(self, linear: nn.Linear, *, keeps_weight: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._whole = linear.weight.detach() if keeps_weight else None
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach(), linear.bias)

    @property
    def nbytes(self) -> int:
        """Of the packed matrix."""
        return self.in_features * self.out_features * torch.half.itemsize

    @property
    def weight(self) -> Tensor:
        """(out, in), float32. Unpacked at every call where it was not kept."""
        if self._whole is not None:
            return self._whole
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0].float()

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out), float32."""
        if x.dim() == 1:  # which the kernel does not take
            return self(x[None])[0]
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(device: torch.device) -> bool:
    return device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def pack(network: nn.Module) -> None:
    """Packs its linear layers, for inference alone. Heads keep their weights, which drafters read and embeddings may
    share."""
    models = [module for module in network.modules() if isinstance(module, PreTrainedModel)]
    heads = {model.get_output_embeddings() for model in models}

    def pack_in(module: nn.Module) -> None:
        for name, child in module.named_children():
            if type(child) is nn.Linear:  # no others, which compute in their own way
                setattr(module, name, PackedLinear(child, keeps_weight=child in heads))

    # Without the layers themselves: a list would hold their float32 weights until the last is packed.
    parents = [module for module in network.modules() if not isinstance(module, nn.Linear)]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # torch packs a matrix with one thread
        list(threads.map(pack_in, parents))


def is_packed(network: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in network.modules())
