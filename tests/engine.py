"""Small models of random weights in the formats that the CPU engine runs."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType as Kind
from gguf import quants
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
    sizes = dict(vocab_size=300, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4)
    others = dict(num_key_value_heads=groups, head_dim=head, max_position_embeddings=512, tie_word_embeddings=tied)
    config_of, model_of = FAMILIES[family]
    model = model_of(config_of(**sizes, **others, **({"sliding_window": None} | more))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def stored(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    """Stores the weights of a model as a checkpoint of that kind has them, and packs it: Q4_0, Q4_1, bfloat16 or
    float16."""
    if kind.startswith("Q4"):
        for name, layer in list(model.model.layers.named_modules()):
            if type(layer) is nn.Linear:
                rows = quants.quantize(layer.weight.detach().numpy(), Kind[kind])
                blocks = torch.from_numpy(rows).unflatten(1, (layer.in_features // 32, -1))
                parent, _, last = name.rpartition(".")
                setattr(model.model.layers.get_submodule(parent), last, BlockLinear(blocks, layer.bias))
    else:
        model = model.to(getattr(torch, kind))
    pack(model)
    attend_by_groups(model, torch.device("cpu"))
    return model
