"""Linear layers of four bits, read from GGUF files (Q4_0, Q4_1), which a CPU multiplies without unpacking them.

A row consists of blocks of 32 weights: a scale d in float16, in Q4_1 a minimum m in float16, then 16 bytes, with weight
i in the lower half of byte i and weight i + 16 in the upper half. A weight is d (q - 8) in Q4_0 and d q + m in Q4_1,
with q from 0 to 15.

The kernel is torch's own. It takes weights in groups of 32, each with a scale and a zero point, like GGUF's blocks, so
nothing is quantised a second time. Inputs, scales and outputs are bfloat16, sums float32; torch's kernel for float32
inputs takes forty times as long. The output for a token does not depend on the other tokens of the pass, to the bit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.cpu.native.layers import has_kind
from playground.models.cpu.native.library import FOUR, engine
from playground.models.fetch.files import ModelFiles

GROUP = 32  # weights in a block
ROWS = 16  # the kernel takes matrices whose number of rows is a multiple of this
SAVED = Path("4-bit", "blocks.safetensors")  # in a folder whose safetensors were converted from GGUF
INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}  # whether llama.cpp reorders the rows of q_proj, k_proj


class BlockLinear(nn.Module):
    """A linear layer's weights in their stored form, before they are packed.

    Attributes:
        blocks: (out, in / 32, bytes of a block), uint8.
        bias: (out,) or None.
    """

    blocks: Tensor
    bias: Tensor | None

    def __init__(self, blocks: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = GROUP * blocks.shape[1], blocks.shape[0]
        self.blocks, self.bias = blocks, bias

    @property
    def kind(self) -> int:
        """The number of bytes in a block, which distinguishes Q4_0 from Q4_1."""
        return self.blocks.shape[2]

    def decoded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q (out, in), uint8, and scale and zero (out, in / 32), float32: a weight is scale (q - 8) + zero."""
        nibbles = self.blocks[..., -GROUP // 2 :]
        halves = self.blocks[..., : -GROUP // 2].contiguous().view(torch.half).float()
        q = torch.cat([nibbles & 15, nibbles >> 4], dim=-1).flatten(1)
        scale = halves[..., 0]
        return q, scale, halves[..., 1] + 8 * scale if halves.shape[-1] == 2 else torch.zeros_like(scale)


def has_blocks(weights: ModelFiles) -> bool:
    """True where the files hold blocks of four bits, or may hold them."""
    return weights.gguf is not None or (weights.folder / SAVED).is_file()


def put_blocks(model: PreTrainedModel, weights: ModelFiles) -> None:
    """Replaces, in place, the linear layers that the files hold in blocks."""
    if weights.gguf:
        blocks = read_gguf(weights.folder / weights.gguf, model)
    else:
        blocks = load_file(weights.folder / SAVED)
    for name, stored in blocks.items():
        parent, _, last = name.rpartition(".")
        layer: Any = model.get_submodule(name)
        bias = None if layer.bias is None else layer.bias.detach()
        setattr(model.get_submodule(parent), last, BlockLinear(stored, bias))


def read_gguf(path: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the blocks of the model's linear layers by the layer's name, (out, in / 32, bytes of a block); none for
    architectures outside INTERLEAVED. The head is left out: drafters read its rows."""
    from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, get_tensor_name_map

    reader, config = GGUFReader(path), model.config
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in INTERLEAVED:
        return {}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    key = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(key, config.num_hidden_layers)
    in_four_bits = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1)
    stored = {tensor.name: tensor.data for tensor in reader.tensors if tensor.tensor_type in in_four_bits}
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        data = stored.get(f"{names.get_name(name)}.weight")
        linear = type(module) is nn.Linear and module is not model.get_output_embeddings()
        if linear and data is not None and len(data) % ROWS == 0:
            blocks = torch.from_numpy(data.copy()).unflatten(1, (module.in_features // GROUP, -1))
            interleaved = heads.get(name.rpartition(".")[2]) if INTERLEAVED[architecture] else None
            found[name] = _by_halves(blocks, interleaved) if interleaved else blocks
    return found


def _by_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorders rows of heads whose two halves alternate, so that one half follows the other, as transformers' rotary
    embedding expects."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


VECTORISED = ("AVX2", "AVX512")  # the instruction sets that torch has vectorised the kernel for


class Int4Linear(nn.Module):
    """A linear layer of four bits that takes and returns float32."""

    def __init__(self, layer: BlockLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        q, scale, zero = layer.decoded()
        # Not buffers: these would be converted with the model.
        self._matrix = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)
        self._scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).bfloat16().contiguous()  # (in / 32, out, 2)
        self._bias = None if layer.bias is None else layer.bias.float()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, in) to (…, out), float32."""
        rows = x.reshape(-1, self.in_features).bfloat16()
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._matrix, GROUP, self._scales).float()
        out = out.view(*x.shape[:-1], self.out_features)
        return out if self._bias is None else out + self._bias


def multiplies_blocks(device: torch.device) -> bool:
    """True where the engine runs, or torch has a fast kernel for the device; for Windows it has none."""
    fast = torch.backends.cpu.get_cpu_capability() in VECTORISED and sys.platform != "win32"
    return device.type == "cpu" and bool(engine() or fast)


def has_int4(network: nn.Module) -> bool:
    return has_kind(network, FOUR) or any(isinstance(module, Int4Linear) for module in network.modules())
