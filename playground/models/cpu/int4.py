"""Linear layers of four to eight bits, read from GGUF files, which a CPU multiplies without unpacking them.

The CPU engine multiplies all types of `native.blocks`. Without it torch does Q4_0 and Q4_1, whose blocks have 32
weights with a scale and a minimum in float16; layers of other types are dequantised.

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

from playground.models.cpu.native.blocks import BITS, COLUMNS, parts_of
from playground.models.cpu.native.layers import main_kind
from playground.models.cpu.native.library import engine
from playground.models.fetch.files import ModelFiles

GROUP = 32  # weights in a block
ROWS = 16  # the kernel takes matrices whose number of rows is a multiple of this
SAVED = Path("4-bit", "blocks.safetensors")  # in a folder whose safetensors were converted from GGUF
EMBEDDING = "token_embd.weight"  # which is the head, too, where a file has no other
TYPES, NATIVE_TYPES = ("Q4_0", "Q4_1"), ("Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")  # torch's, more of the engine
INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}  # whether llama.cpp reorders the rows of q_proj, k_proj


class BlockLinear(nn.Module):
    """A linear layer's weights in their stored form, before they are packed.

    Attributes:
        blocks: (out, blocks of a row, bytes of a block), uint8.
        bias: (out,) or None.
        matrix: of a head the weights, (out, in), which drafters read.
    """

    blocks: Tensor
    bias: Tensor | None
    matrix: Tensor | None

    def __init__(self, blocks: Tensor, bias: Tensor | None, matrix: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = COLUMNS[blocks.shape[2]] * blocks.shape[1], blocks.shape[0]
        self.blocks, self.bias, self.matrix = blocks, bias, matrix

    @property
    def kind(self) -> int:
        """The number of bytes in a block, which distinguishes GGUF's types."""
        return self.blocks.shape[2]

    def decoded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q (out, in), uint8, and scale and zero (out, in / 32), float32, of four bits: a weight is
        scale (q - 8) + zero."""
        numbers, _, q = parts_of(self.blocks)
        scale, least = numbers.float().unbind(dim=2)
        return q.flatten(1), scale, least + 8 * scale


def has_blocks(weights: ModelFiles) -> bool:
    """True where the files hold blocks, or may hold them."""
    return weights.gguf is not None or (weights.folder / SAVED).is_file()


def put_blocks(model: PreTrainedModel, weights: ModelFiles) -> None:
    """Replaces, in place, the linear layers that the files hold in blocks."""
    if weights.gguf:
        blocks = read_gguf(weights.folder / weights.gguf, model, native=bool(engine()))
    else:
        blocks = load_file(weights.folder / SAVED)
    for name, stored in blocks.items():
        parent, _, last = name.rpartition(".")
        layer: Any = model.get_submodule(name)
        bias = None if layer.bias is None else layer.bias.detach()
        matrix = layer.weight.detach() if layer is model.get_output_embeddings() else None
        setattr(model.get_submodule(parent), last, BlockLinear(stored, bias, matrix))


def read_gguf(path: Path, model: PreTrainedModel, native: bool = False) -> dict[str, Tensor]:
    """Returns the blocks of the model's linear layers by the layer's name, (out, blocks of a row, bytes of a block);
    none for architectures outside INTERLEAVED.

    Args:
        native: what the engine multiplies; otherwise what torch does, without the head, whose rows drafters read.
    """
    from gguf import GGML_QUANT_SIZES, MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

    reader, config = GGUFReader(path), model.config
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in INTERLEAVED:
        return {}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    key = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(key, config.num_hidden_layers)
    types = (*TYPES, *NATIVE_TYPES) if native else TYPES
    stored = {tensor.name: tensor for tensor in reader.tensors if tensor.tensor_type.name in types}
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        head = module is model.get_output_embeddings()
        tensor = stored.get(f"{names.get_name(name)}.weight") or (stored.get(EMBEDDING) if head else None)
        takes = type(module) is nn.Linear and (native or not (head or module.out_features % ROWS))
        if takes and tensor is not None and len(tensor.data) == module.out_features:
            _, size = GGML_QUANT_SIZES[tensor.tensor_type]
            blocks = torch.from_numpy(tensor.data.copy()).unflatten(1, (-1, size))
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


def bits_of(network: nn.Module) -> int | None:
    """Returns the bits of the integers that most of a network's weights are stored in; None if it has 16 or more."""
    torchs = any(isinstance(module, Int4Linear) for module in network.modules())
    return 4 if torchs else BITS.get(main_kind(network))
