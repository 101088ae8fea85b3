"""Networks that draft from hidden states, as structs of the engine: a layer (`native_drafter`), or a few that draft a
block (`native_block`). Both return None for what torch runs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from playground.models.cpu.native.layers import GROUP, NativeLinear
from playground.models.cpu.native.library import Drafter, Engine, Layer, Matrix
from playground.models.cpu.native.model import EMBEDDINGS, Native, layer_of, why_not_config, why_not_layers
from playground.models.networks.eagle3 import Eagle3Head, FusedEagle3Layer
from playground.models.networks.mtp import MtpLayer

WIDE = False  # activations of 8 bits: of the starter's MTP layer as many drafts were accepted as with 16


class NativeDrafter(Native):
    """An MTP layer or an EAGLE-3 head that the engine runs: its one layer and its head, as a model.

    `drafter`: the whole, without further rows of the head.
    """

    def __init__(self, network: Any, engine: Engine) -> None:
        layer, config = network.base.layers[0], network.config
        self.network = network
        self._tensors = [network.embedding, *_norms(network)]  # to which the engine has pointers
        embedding, embedding_norm, hidden_norm, norm = (each.data_ptr() for each in self._tensors)
        super().__init__(
            network.base,
            config,
            [layer_of(layer)],
            engine,
            vocabulary=network.head.out_features,
            wide=WIDE,
            embedding_kind=EMBEDDINGS[network.embedding.dtype],
            epsilon=config.rms_norm_eps,
            embedding=embedding,
            norm=norm,
            logits=network.head.matrix,
        )
        eagle = _is_eagle(network)
        self.drafter = Drafter(
            model=ctypes.pointer(self.struct),
            embedding_norm=embedding_norm,
            hidden_norm=hidden_norm,
            join=Matrix() if eagle else network.proj.matrix,
            norm_residual=eagle and layer.norm_before_residual,
            norm_output=not eagle or network.norm_output,
            epsilon=config.rms_norm_eps if eagle else network.norm_embedding.eps,
        )


def native_drafter(network: Any, found: Engine) -> NativeDrafter | None:
    """Returns a network as the engine's struct; None if torch runs it."""
    return NativeDrafter(network, found) if _can_run(network) else None


def _is_eagle(network: object) -> bool:
    return isinstance(network, Eagle3Head)


def _norms(network: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the norms of the embedding, of the hidden state and of the output, each (width,)."""
    if _is_eagle(network):
        layer = network.base.layers[0]
        return layer.before_attention.weight, layer.before_hidden.weight, network.norm.weight
    return network.norm_embedding.weight, network.norm_hidden.weight, network.base.norm.weight


def _can_run(network: Any) -> bool:
    """Compares sizes with those that the weights have, as the engine reads memory by them."""
    if type(network) not in (MtpLayer, Eagle3Head) or not hasattr(network.base.layers[0], "before_attention"):
        return False
    config, eagle = network.config, _is_eagle(network)
    width, layer = config.hidden_size, network.base.layers[0]
    if eagle != isinstance(layer, FusedEagle3Layer) or len(network.base.layers) != 1:
        return False
    if why_not_layers(config, network.base.layers, width * (1 + eagle)):
        return False
    matrices = [network.head, *([] if eagle else [network.proj, network.whole_head])]
    embedding, rows = network.embedding, len(network.draft_ids)
    return (
        all(isinstance(each, NativeLinear) for each in matrices)
        and (network.head.out_features, network.head.in_features) == (rows, width)
        and (eagle or (network.proj.out_features, network.proj.in_features) == (width, 2 * width))
        and (embedding.shape, embedding.dtype in EMBEDDINGS) == ((network.vocab_size, width), True)
        and all(norm.shape == (width,) for norm in _norms(network))
    )


class NativeBlock(Native):
    """A network that drafts a block and that the engine runs: its layers, as a model without head and embedding."""

    def __init__(self, network: Any, engine: Engine) -> None:
        base, config = network.base, network.config
        self.network = network
        self._matrices = [(_joined(_projections(layer)), _gate_up(layer.mlp)) for layer in base.layers]
        layers = [_layer(layer, *made) for layer, made in zip(base.layers, self._matrices, strict=True)]
        norm = base.norm.weight.data_ptr()
        super().__init__(base, config, layers, engine, wide=WIDE, epsilon=config.rms_norm_eps, norm=norm)


def native_block(network: Any, found: Engine) -> NativeBlock | None:
    """Returns a network as the engine's struct, made once for each network; None if torch runs it."""
    made: dict[str, NativeBlock | None] = network.__dict__.setdefault("native", {})
    if found.name not in made:
        made[found.name] = NativeBlock(network, found) if _can_run_block(network) else None
    return made[found.name]


def _projections(layer: Any) -> list[NativeLinear]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


def _joined(layers: list[NativeLinear]) -> NativeLinear:
    groups, rows = torch.cat([layer.groups for layer in layers]), sum(layer.out_features for layer in layers)
    return NativeLinear(layers[0].kind, groups, rows, layers[0].in_features)


def _gate_up(mlp: Any) -> NativeLinear:
    both = _joined([mlp.gate_proj, mlp.up_proj]).in_turn()
    assert both, "the halves are multiples of 32"
    return both


def _layer(layer: Any, query_key_value: NativeLinear, gate_up: NativeLinear) -> Layer:
    attention = layer.self_attn
    norms = layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm
    others = (each.matrix for each in (attention.o_proj, gate_up, layer.mlp.down_proj))
    return Layer(*(norm.weight.data_ptr() for norm in norms), query_key_value.matrix, Matrix(), *others)


def _can_run_block(network: Any) -> bool:
    """Compares sizes with those that the weights have, as the engine reads memory by them."""
    config, layers = network.config, network.base.layers
    plain = all(hasattr(layer.self_attn, "q_proj") and hasattr(layer.mlp, "gate_proj") for layer in layers)
    if not plain or why_not_config(config, head := layers[0].self_attn.head_dim):  # DFlash 2 has convolutions
        return False
    width, inner = config.hidden_size, config.intermediate_size
    rows = [config.num_attention_heads * head, *[config.num_key_value_heads * head] * 2, inner, inner]
    shapes = [*((each, width) for each in rows), (width, rows[0]), (width, inner)]
    for layer in layers:
        mlp = layer.mlp
        matrices = [*_projections(layer), mlp.gate_proj, mlp.up_proj, layer.self_attn.o_proj, mlp.down_proj]
        stored = [(each.out_features, each.in_features) for each in matrices if isinstance(each, NativeLinear)]
        if stored != shapes or not isinstance(mlp.act_fn, nn.SiLU | SiLUActivation):
            return False
        if any(len({each.kind for each in together}) > 1 for together in (matrices[:3], matrices[3:5])):
            return False
    return all(each % GROUP == 0 for each in rows)
