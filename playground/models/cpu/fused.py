"""Llama layers in fewer operations.

A pass over one token through a small model consists of hundreds of short operations: starting them takes a CPU as long
as the matrix products themselves. Here queries, keys and values are one product, gate and up projection another; the
rotary embedding turns queries and keys together, and a norm takes four operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    LlamaDecoderLayer,
    LlamaModel,
    LlamaRMSNorm,
    eager_attention_forward,
)

from playground.models.cpu.blocks import BlockLinear


class FusedLayer(nn.Module):
    """A `LlamaDecoderLayer`: the same hidden states from the same ones, rounding aside.

    Args:
        layer: is taken apart.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.before_attention = Norm(layer.input_layernorm)
        self.before_mlp = Norm(layer.post_attention_layernorm)
        self.query_key_value = Beside(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = attention.o_proj
        self.gate_up = Beside(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj
        self.activation = mlp.act_fn
        del attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        self.self_attn = attention  # which attention functions read
        self._heads: int = attention.config.num_attention_heads
        self._turned: int = self._heads + attention.config.num_key_value_heads  # heads that the embedding rotates

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **options: Any,
    ) -> Tensor:
        """(rows, n, width) to (rows, n, width). `position_embeddings`: of `FusedRotary`; other arguments: those that
        `LlamaModel` passes to its layers."""
        attention, heads, turned = self.self_attn, self._heads, self._turned
        rows, n, _ = hidden_states.shape
        states = self.query_key_value(self.before_attention(hidden_states)).view(rows, n, -1, attention.head_dim)
        queries_keys, value = rotate(states[:, :, :turned], *position_embeddings).transpose(1, 2), states[:, :, turned:]
        query, key, value = queries_keys[:, :heads], queries_keys[:, heads:], value.transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, attention.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
        seen, _ = attend(attention, query, key, value, attention_mask, scaling=attention.scaling, **options)
        hidden_states = hidden_states + self.out(seen.reshape(rows, n, -1))
        gate, up = self.gate_up(self.before_mlp(hidden_states)).chunk(2, dim=-1)
        return hidden_states + self.down(self.activation(gate) * up)


class Norm(nn.Module):
    """Root mean square norm, for which torch has no CPU kernel: x √d w / √(|x|² + d ε), whose root is a hypotenuse."""

    _least: Tensor

    def __init__(self, norm: LlamaRMSNorm) -> None:
        super().__init__()
        width = norm.weight.numel()
        self.weight = nn.Parameter(norm.weight.detach().float() * width**0.5, requires_grad=False)
        self.register_buffer("_least", torch.tensor((width * norm.variance_epsilon) ** 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.hypot(length, self._least) * self.weight


class FusedRotary(nn.Module):
    """Cosines and sines (rows, n, 1, head width), with the sign that `rotate` needs in the sines.

    Args:
        rotary: the model's own, which gives them as (rows, n, head width).
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(x, position_ids=position_ids)
        lower, upper = sin.chunk(2, dim=-1)
        return cos.unsqueeze(2), torch.cat([-lower, upper], dim=-1).unsqueeze(2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of heads (rows, n, heads, head width)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Beside(nn.Module):
    """Layers that read the same, their outputs one after the other. `layers` are no submodules: until they are packed
    they only refer to what was loaded."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], dim=-1)

    def joined(self) -> nn.Module | None:
        """One layer in place of all; None if they are stored in different ways."""
        first = self.layers[0]
        bias = None if first.bias is None else torch.cat([layer.bias.detach() for layer in self.layers])
        if all(type(layer) is nn.Linear for layer in self.layers):
            weight = torch.cat([layer.weight.detach() for layer in self.layers])
            one = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
            one.weight = nn.Parameter(weight, requires_grad=False)
            if bias is not None:
                one.bias = nn.Parameter(bias, requires_grad=False)
            return one
        if all(isinstance(layer, BlockLinear) and layer.kind == first.kind for layer in self.layers):
            return BlockLinear(torch.cat([layer.blocks for layer in self.layers]), bias)
        return None


def fuse(network: nn.Module) -> None:
    """Fuses the layers of Llama models in a network, in place and for inference in float32 alone."""
    for model in network.modules():
        if isinstance(model, LlamaModel) and all(type(layer) is LlamaDecoderLayer for layer in model.layers):
            model.layers = nn.ModuleList(FusedLayer(layer) for layer in model.layers)
            model.set_submodule("rotary_emb", FusedRotary(model.rotary_emb))
