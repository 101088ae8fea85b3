"""A loaded model as the engine's struct: `native_model` says whether the engine can run it, and where its weights are.

Nothing is copied: the engine reads the weights of the layers that torch runs too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from playground.models.cpu.native.layers import BLOCK, NativeLinear
from playground.models.cpu.native.library import (
    BFLOAT16,
    FLOAT16,
    Engine,
    Layer,
    Matrix,
    Model,
    engine,
    why_torch,
    wide,
)
from playground.models.fused import Beside, FusedLayer

MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
ROPES = ("default", "linear", "llama3", "yarn")  # rotary embeddings whose angles depend on the position alone
WIDTHS = (32, 64, 96, 128)  # of a head
EMBEDDINGS = {torch.float32: -1, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


class Native:
    """Layers that the engine runs.

    Attributes:
        struct: the layers, and what comes before and after them, as the engine's struct.
        engine: what runs them.

    Args:
        decoder: the module that holds the layers and their rotary embedding.
        layers: the layers as the engine's structs.
        more: the other fields of `Model`.
    """

    def __init__(self, decoder: Any, config: Any, layers: Sequence[Layer], engine: Engine, **more: Any) -> None:
        attention = decoder.layers[0].self_attn
        self.engine, self._decoder = engine, decoder
        self.struct = Model(
            width=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            head=attention.head_dim,
            layers=len(layers),
            scale=attention.scaling,
            layer=(Layer * len(layers))(*layers),
            **more,
        )

    def angles(self, positions: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines of the rotary embedding, (positions, head / 2), float32."""
        cosines, sines = self._decoder.rotary_emb(torch.zeros(1), torch.arange(positions)[None])
        half = cosines.shape[-1] // 2  # both halves are the same
        return cosines[0, :, :half].float().contiguous(), sines[0, :, :half].float().contiguous()


class NativeModel(Native):
    """A model that the engine runs."""

    def __init__(self, model: PreTrainedModel, engine: Engine) -> None:
        decoder: Any = model.model
        embedding: Any = model.get_input_embeddings().weight
        head: Any = model.get_output_embeddings()
        self._tensors = [embedding, decoder.norm.weight]  # to which the engine has pointers
        super().__init__(
            decoder,
            model.config,
            [layer_of(layer) for layer in decoder.layers],
            engine,
            vocabulary=head.out_features,
            wide=wide(),
            embedding_kind=EMBEDDINGS[embedding.dtype],
            epsilon=decoder.norm.epsilon,
            embedding=embedding.data_ptr(),
            norm=decoder.norm.weight.data_ptr(),
            logits=head.matrix,
        )

    def first(self, layers: int) -> NativeModel:
        """Returns the model that ends after so many layers."""
        shallow = copy.copy(self)
        shallow.struct = Model.from_buffer_copy(self.struct)
        shallow.struct.layers = layers
        return shallow


def layer_of(layer: Any) -> Layer:
    """Returns a fused layer as the engine's struct, which is valid as long as the layer exists."""
    norms = layer.before_attention.weight, layer.before_mlp.weight
    heads = (layer.of_heads.weight[0], layer.of_heads.weight[-1]) if layer.of_heads else ()
    pointers = [norm.data_ptr() for norm in (*norms, *heads)] + [None] * (2 - len(heads))
    query_key_value, *others = (each.matrix for each in _parts(layer.query_key_value))
    matrices = [layer.out.matrix, layer.gate_up.matrix, layer.down.matrix]
    return Layer(*pointers, query_key_value, *(others or [Matrix()]), *matrices)


def _parts(layer: nn.Module) -> list[Any]:
    """Returns the layers of two formats that a layer may consist of."""
    return list(layer.layers) if isinstance(layer, Beside) else [layer]


def _shape(parts: Sequence[Any]) -> tuple[int, int] | None:
    """Returns the shape of a layer's matrix; None if the engine does not multiply it, as of more than two formats, or
    of two whose inputs differ, which only those of blocks share."""
    if not all(isinstance(each, NativeLinear) for each in parts) or len(parts) > 2:
        return None
    if len({each.in_blocks or each.kind for each in parts}) > 1:
        return None
    return sum(each.out_features for each in parts), parts[0].in_features


def native_model(model: PreTrainedModel) -> NativeModel | str:
    """Returns the model as the engine's struct, or why torch runs it, as a clause; "" where nothing needs the engine:
    on a GPU, and in formats that torch computes in."""
    found = engine()
    if model.device.type != "cpu":
        return ""
    if found is None:
        return why_torch()
    if not isinstance(model.get_output_embeddings(), NativeLinear):
        return ""
    reason = _why_not(model)
    return reason or NativeModel(model, found)


def _why_not(model: PreTrainedModel) -> str:
    """Returns why the engine cannot run a model; "" if it can. Sizes are compared with those that the weights have, as
    the engine reads memory by them."""
    if type(model) not in MODELS:
        return f"the engine does not run {type(model).__name__}"
    decoder: Any = model.model
    config: Any = model.config
    reason = why_not_layers(config, list(decoder.layers), config.hidden_size)
    if reason:
        return reason
    embedding: Any = model.get_input_embeddings().weight
    if embedding.shape != (config.vocab_size, config.hidden_size) or embedding.dtype not in EMBEDDINGS:
        return "its embedding is stored in another format"
    if (model.get_output_embeddings().out_features, model.get_output_embeddings().in_features) != embedding.shape:
        return "its head and its embedding have different sizes"
    return ""


def why_not_config(config: Any, head: int) -> str:
    """Returns why the engine cannot run layers of this config, with heads of this width; "" if it can."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
        return "the engine has no sliding windows"
    if rope.get("rope_type", "default") not in ROPES:
        return f"the engine does not know rotary positions of the kind {rope['rope_type']}"
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    if head not in WIDTHS or rope.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        return (
            f"the engine has no attention with heads of {head} that are rotated in part, or of a width unlike {WIDTHS}"
        )
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK or heads % groups:
        return "the engine needs sizes that are multiples of 32"
    return ""


def why_not_layers(config: Any, layers: Sequence[Any], read: int) -> str:
    """Returns why the engine cannot run fused layers; "" if it can. `read`: the width that attention reads."""
    width, head = config.hidden_size, layers[0].self_attn.head_dim
    heads, groups, inner = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    if reason := why_not_config(config, head):
        return reason
    shapes = [((heads + 2 * groups) * head, read), (width, heads * head), (2 * inner, width), (width, inner)]
    for layer in layers:
        fused = isinstance(layer, FusedLayer)
        matrices = [layer.query_key_value, layer.out, layer.gate_up, layer.down] if fused else []
        stored = [_shape(_parts(each)) for each in matrices]
        if fused and isinstance(layer.gate_up, Beside):
            return "its gate and up projections are stored in two formats"
        if stored != shapes or not matrices[2].halves or not isinstance(layer.activation, nn.SiLU | SiLUActivation):
            return "its layers are not of a kind that the engine has, or their matrices are stored in several formats"
        norms = layer.before_attention.weight, layer.before_mlp.weight
        if any(norm.shape != (width,) for norm in norms):
            return "its norms are of another width"
        if layer.of_heads and layer.of_heads.weight.shape != (heads + groups, head):
            return "its head norms are of another width"
    return ""
