"""Small models of random weights in the formats that the CPU engine runs."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Kind
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from playground.models.attention import attend_by_groups
from playground.models.cpu.int4 import BlockLinear
from playground.models.cpu.packed import pack

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def small(family: str = "llama", head: int = 64, groups: int = 2, tied: bool = True, **more: object) -> PreTrainedModel:
    """A model in float32, with biases and norms that do something."""
    torch.manual_seed(0)
    sizes = (
        dict(vocab_size=300, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4) | more
    )
    others = dict(num_key_value_heads=groups, head_dim=head, max_position_embeddings=512, tie_word_embeddings=tied)
    config_of, model_of = FAMILIES[family]
    model = model_of(config_of(**({"sliding_window": None} | others | sizes | more))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def blocks(kind: str, rows: int, columns: int, whole: np.ndarray | None = None) -> torch.Tensor:
    """GGUF's blocks of a matrix; of a type that the gguf package does not quantise to, blocks of random numbers."""
    if not kind.endswith("_K"):
        whole = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32) if whole is None else whole
        stored = quants.quantize(whole, Kind[kind])
    else:
        _, size = GGML_QUANT_SIZES[Kind[kind]]
        draw = np.random.default_rng(rows + columns)
        stored = draw.integers(256, size=(rows, columns // 256, size), dtype=np.uint8)
        scales = (draw.uniform(0.5, 1.5, size=(rows, columns // 256, 1)) * np.array(SCALES[kind])).astype(np.float16)
        at = slice(-2, None) if kind == "Q6_K" else slice(0, 4)
        stored[..., at] = scales.view(np.uint8)
    return torch.from_numpy(stored).view(rows, -1, GGML_QUANT_SIZES[Kind[kind]][1])


SCALES = {"Q4_K": (8e-5, 6e-4), "Q5_K": (4e-5, 6e-4), "Q6_K": (1.5e-5,)}  # of weights of about 0.02
MIXED = {"q_proj": "Q4_K", "k_proj": "Q4_K", "v_proj": "Q6_K", "down_proj": "Q6_K", "lm_head": "Q6_K"}  # of Q4_K_M
WIDE = dict(hidden_size=256, intermediate_size=256)  # columns that types of 256 take


def stored(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    """Stores the weights of a model as a checkpoint of that kind has them, and packs it: one of GGUF's types, Q4_K_M,
    which mixes them, bfloat16 or float16."""
    if kind.startswith("Q"):
        for name, layer in list(model.named_modules()):
            parent, _, last = name.rpartition(".")
            of = MIXED.get(last, "Q4_K") if kind == "Q4_K_M" else kind
            if type(layer) is nn.Linear and (last != "lm_head" or kind == "Q4_K_M"):
                matrix = layer.weight.detach()
                rows = blocks(of, *matrix.shape, matrix.numpy())
                held = matrix if last == "lm_head" else None
                setattr(model.get_submodule(parent), last, BlockLinear(rows, layer.bias, held))
    else:
        model = model.to(getattr(torch, kind))
    pack(model)
    attend_by_groups(model, torch.device("cpu"))
    return model
