"""Layers in fewer operations: fused layers of Llama and similar models.

A pass over one token consists of hundreds of short operations: starting them takes the device as long as the matrix
products themselves. Here queries, keys and values are one product, gate and up projection another; the rotary embedding
rotates queries and keys together, and a norm is one kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import groupby, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    LlamaDecoderLayer,
    LlamaModel,
    eager_attention_forward,
)
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralModel
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer, MixtralModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3Model
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer, Qwen3MoeModel

from playground.models.cpu.int4 import BlockLinear

LAYERS = (
    LlamaDecoderLayer,
    MistralDecoderLayer,
    MixtralDecoderLayer,
    Qwen2DecoderLayer,
    Qwen3DecoderLayer,
    Qwen3MoeDecoderLayer,
)
DEVICES = ("cuda",)  # on a CPU weights are packed instead, after `fuse`
PEAK = 1.05  # times the weights: the memory while layers are joined, at most
MODELS = (LlamaModel, MistralModel, MixtralModel, Qwen2Model, Qwen3Model, Qwen3MoeModel)


class Norm(nn.Module):
    """Root mean square norm of x, (…, width): x w / √(mean x² + ε), for which CUDA has a kernel.

    Args:
        weight: w, (width,); or (heads, width), a norm for each head.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm, which the layer before may have computed with its last addition (`FusedLayer.kernels`)."""
        width = x.shape[-1:]
        known = x.__dict__.get("normed")
        if known and known[0] is self:
            return known[1]
        if self.weight.dim() > 1:
            return F.rms_norm(x, width, None, self.epsilon) * self.weight
        return F.rms_norm(x, width, self.weight, self.epsilon)


class FusedLayer(nn.Module):
    """A fused form of one of LAYERS, equal to it up to rounding.

    Attributes:
        kernels: the module models/cuda/layer.py where its kernels are used; None where torch's are.
        following: the norm that is applied to the layer's output, in a tuple, since it is no part of the layer.

    Args:
        layer: the layer, whose parts are moved here.
        norm: the class of its norms.
    """

    kernels: Any = None
    following: tuple[Norm, ...] = ()

    def __init__(self, layer: Any, norm: type[Norm]) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._heads: int = attention.config.num_attention_heads
        self._turned: int = self._heads + attention.config.num_key_value_heads  # heads that the embedding rotates
        self.before_attention = fused_norm(layer.input_layernorm, norm)
        self.before_mlp = fused_norm(layer.post_attention_layernorm, norm)
        self.of_heads = self._head_norm(attention, norm) if hasattr(attention, "q_norm") else None
        self.query_key_value = Beside(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = attention.o_proj
        self.mixture = None if hasattr(mlp, "gate_proj") else mlp
        if not self.mixture:
            self.gate_up = Beside(mlp.gate_proj, mlp.up_proj)
            self.down = mlp.down_proj
            self.activation = mlp.act_fn
        del attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        self.self_attn = attention  # attention functions read it

    def _head_norm(self, attention: Any, norm: type[Norm]) -> Norm:
        """Returns the norm of queries and keys, concatenated."""
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        each = torch.stack([*[query] * self._heads, *[key] * (self._turned - self._heads)])
        epsilon = attention.q_norm.variance_epsilon
        del attention.q_norm, attention.k_norm
        return norm(each, epsilon)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **options: Any,
    ) -> Tensor:
        """Maps (rows, n, width) to (rows, n, width). The arguments are those that transformers' models pass to their
        layers."""
        attention, (rows, n, _) = self.self_attn, hidden_states.shape
        hidden_states, normed = self._entered(hidden_states)
        states = self.query_key_value(normed).view(rows, n, -1, attention.head_dim)
        query, key, value = self._query_key_value(states, position_embeddings, past_key_values)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
        seen, _ = attend(attention, query, key, value, attention_mask, scaling=attention.scaling, **options)
        hidden_states, normed = self._added(hidden_states, self.out(seen.reshape(rows, n, -1)), self.before_mlp)
        added = self.mixture(normed) if self.mixture else self.down(self._activated(self.gate_up(normed)))
        if not self.kernels or not self.following:
            return hidden_states + added
        hidden_states, normed = self._added(hidden_states, added, *self.following)
        hidden_states.__dict__["normed"] = *self.following, normed
        return hidden_states

    def _entered(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual and what attention reads."""
        return hidden_states, self.before_attention(hidden_states)

    def _query_key_value(
        self, states: Tensor, position_embeddings: tuple[Tensor, Tensor], cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries, (rows, heads, n, head width), and the keys and values that they attend to."""
        heads, turned, index = self._heads, self._turned, self.self_attn.layer_idx
        entries: Any = cache.layers[index] if cache is not None and index < len(cache.layers) else None
        if self.kernels and getattr(entries, "at_fixed_addresses", False):
            cos, sin = position_embeddings
            weight, epsilon = (self.of_heads.weight, self.of_heads.epsilon) if self.of_heads else (None, 0.0)
            into = entries.slots, entries.keys, entries.values
            query = self.kernels.rotate_and_store(states[0], cos[0], sin[0], weight, epsilon, *into)
            return query, *entries.visible
        queries_keys, value = states[:, :, :turned], states[:, :, turned:].transpose(1, 2)
        if self.of_heads:
            queries_keys = self.of_heads(queries_keys)
        queries_keys = rotate(queries_keys, *signed(*position_embeddings)).transpose(1, 2)
        query, key = queries_keys[:, :heads], queries_keys[:, heads:]
        if cache is not None:
            key, value = cache.update(key, value, index)
        return query, key, value

    def _added(self, x: Tensor, delta: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Returns x + delta, and its norm."""
        if self.kernels:
            return self.kernels.add_norm(x, delta, norm.weight, norm.epsilon)
        x = x + delta
        return x, norm(x)

    def _activated(self, gate_up: Tensor) -> Tensor:
        if self.kernels and isinstance(self.activation, nn.SiLU | SiLUActivation):
            return self.kernels.silu_gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activation(gate) * up


class Fusible(nn.Module, ABC):
    """A decoder layer of our own that has a fused form."""

    @abstractmethod
    def fused(self, norm: type[Norm]) -> FusedLayer:
        """Returns the fused form, to which the layer's parts are moved. `norm`: the class of its norms."""


def signed(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines (rows, n, 1, head width) from those of a model's rotary embedding, (rows, n, head
    width), with the signs of `rotate` in the sines. All layers of a pass share them, so they are cached as an attribute
    of the cosines."""
    kept: dict[str, tuple[Tensor, Tensor]] = cos.__dict__
    if "signed" not in kept:
        lower, upper = sin.chunk(2, dim=-1)
        kept["signed"] = cos.unsqueeze(2), torch.cat([-lower, upper], dim=-1).unsqueeze(2)
    return kept["signed"]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotary embedding to heads (rows, n, heads, head width)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Beside(nn.Module):
    """Linear layers with one input, (…, in), whose outputs are concatenated, (…, sum of their widths). `layers` are no
    submodules: until they are joined they only refer to the loaded layers."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers: Any = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], dim=-1)

    def joined(self) -> list[nn.Module]:
        """Returns layers in place of all: one in place of those that follow each other, stored in the same way."""
        return [_joined(list(layers)) for _, layers in groupby(self.layers, _stored)]


def _stored(layer: nn.Module) -> object:
    """Returns how a layer is stored; one of an unknown class in a way of its own."""
    return layer.kind if isinstance(layer, BlockLinear) else type(layer) if type(layer) is nn.Linear else layer


def _joined(layers: Sequence[Any]) -> nn.Module:
    """Returns one layer in place of several that are stored in the same way."""
    first: nn.Module = layers[0]
    if len(layers) == 1:
        return first
    bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
    if isinstance(layers[0], BlockLinear):
        return BlockLinear(torch.cat([layer.blocks for layer in layers]), bias)
    weight = torch.cat([layer.weight.detach() for layer in layers])
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        one.bias = nn.Parameter(bias, requires_grad=False)
    return one


def fused_norm(module: Any, norm: type[Norm]) -> Norm:
    return norm(module.weight, module.variance_epsilon)


def fuse(network: nn.Module, norm: type[Norm] = Norm) -> None:
    """Fuses the layers and the final norms of the MODELS in a network, in place and for inference alone. Their linear
    layers are grouped, but not joined."""
    for model in network.modules():
        if isinstance(model, MODELS):
            for i, layer in enumerate(model.layers):
                if isinstance(layer, LAYERS):
                    model.layers[i] = FusedLayer(layer, norm)
                elif isinstance(layer, Fusible):
                    model.layers[i] = layer.fused(norm)
            if hasattr(model.norm, "variance_epsilon"):  # an EAGLE-3 head's model has none
                model.set_submodule("norm", fused_norm(model.norm, norm))
            for layer, after in pairwise([*model.layers, model.norm]):
                following = getattr(after, "before_attention", after)
                if isinstance(layer, FusedLayer) and isinstance(following, Norm):
                    layer.following = (following,)


def fuse_and_join(network: nn.Module, device: torch.device) -> None:
    """Fuses like `fuse`, and joins linear layers that have one input; on DEVICES only. It joins layer by layer, and
    nothing else may refer to the layers that are joined, so that only one layer's weights exist twice at once. A
    network whose layers hold quantised weights is not changed."""
    if device.type not in DEVICES or not all(type(linear) is nn.Linear for linear in _linear_layers(network)):
        return
    fuse(network)
    for layer in network.modules():
        if isinstance(layer, FusedLayer):
            for name in [name for name, part in layer.named_children() if isinstance(part, Beside)]:
                setattr(layer, name, *getattr(layer, name).joined())
    torch.cuda.empty_cache()  # joined weights seldom fit into the gaps that the loaded ones left


def use_kernels(modules: Iterable[nn.Module], ours: bool) -> None:
    """Makes the fused layers among all modules of a network use the kernels of models/cuda/layer.py, or torch's."""
    for layer in modules:
        if isinstance(layer, FusedLayer):
            layer.kernels = import_module("playground.models.cuda.layer") if ours else None


def _linear_layers(network: nn.Module) -> Iterator[nn.Module]:
    for layer in network.modules():
        if isinstance(layer, (*LAYERS, Fusible)):
            yield from (part for part in layer.modules() if hasattr(part, "in_features"))
