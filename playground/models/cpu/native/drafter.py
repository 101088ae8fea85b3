"""A layer that drafts from hidden states in the engine's words; `native_drafter` says whether the engine runs it."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from playground.models.cpu.native.layers import NativeLinear
from playground.models.cpu.native.library import Drafter, Engine, Matrix, Model, wide
from playground.models.cpu.native.model import EMBEDDINGS, angles_of, layer_of, why_not_layers
from playground.models.networks.eagle3 import Eagle3Head, FusedEagle3Layer
from playground.models.networks.mtp import MtpLayer


class NativeDrafter:
    """An MTP layer or an EAGLE-3 head that the engine runs.

    Attributes:
        struct: its one layer and its head, as a model.
        drafter: the whole, without further rows of the head.
        engine: what runs it.
    """

    def __init__(self, network: Any, found: Engine) -> None:
        layer, config = network.base.layers[0], network.config
        self.engine, self.network = found, network
        self._layer = layer_of(layer)
        self._kept = [network.embedding, *_norms(network)]
        embedding, embedding_norm, hidden_norm, norm = (each.data_ptr() for each in self._kept)
        self.struct = Model(
            width=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            head=layer.self_attn.head_dim,
            layers=1,
            vocabulary=network.head.out_features,
            wide=wide(),
            embedding_kind=EMBEDDINGS[network.embedding.dtype],
            epsilon=config.rms_norm_eps,
            scale=layer.self_attn.scaling,
            layer=ctypes.pointer(self._layer),
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

    def angles(self, positions: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines of the rotary embedding, (positions, head / 2), float32."""
        return angles_of(self.network.base, positions)


def native_drafter(network: Any, found: Engine) -> NativeDrafter | None:
    """Returns a network in the engine's words; None if torch runs it."""
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
        and (eagle or network.head.kind == network.whole_head.kind)
        and (network.head.out_features, network.head.in_features) == (rows, width)
        and (eagle or (network.proj.out_features, network.proj.in_features) == (width, 2 * width))
        and (embedding.shape, embedding.dtype in EMBEDDINGS) == ((network.vocab_size, width), True)
        and all(norm.shape == (width,) for norm in _norms(network))
    )
