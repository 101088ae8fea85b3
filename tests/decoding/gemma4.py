"""Gemma 4 targets and assistants of tiny size, through transformers' own classes, with random weights in float32."""

from __future__ import annotations

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
    PreTrainedModel,
)

WINDOW = 6
SIZES = dict(
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    global_head_dim=16,
    sliding_window=WINDOW,
    initializer_range=0.4,
    tie_word_embeddings=False,
    bos_token_id=0,
    pad_token_id=0,
)
KINDS = ["sliding_attention", "full_attention"]
TARGET = SIZES | dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, layer_types=KINDS * 2)
PER_LAYER = dict(num_kv_shared_layers=2, hidden_size_per_layer_input=4)  # as in the small models
ALONE = dict(hidden_size_per_layer_input=0)
MOE = dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16)


def gemma4_target(kind: str, vocab: int, seed: int = 0, **others: object) -> PreTrainedModel:
    """`kind`: text (keys and values shared between layers, an input per layer), whole (the same, in the class of the
    published models), moe (none shared, experts, values as keys in full attention) or unified."""
    torch.manual_seed(seed)
    sizes = TARGET | dict(vocab_size=vocab, vocab_size_per_layer_input=vocab, eos_token_id=vocab - 1) | others
    if kind == "text":
        return Gemma4ForCausalLM(Gemma4TextConfig(**PER_LAYER | sizes)).eval()
    if kind == "whole":
        text = Gemma4TextConfig(**PER_LAYER | sizes)
        model = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, tie_word_embeddings=False)).eval()
        model.generation_config.eos_token_id = vocab - 1
        model.generation_config.pad_token_id = 0
        return model
    if kind == "moe":
        alike = dict(attention_k_eq_v=True, num_global_key_value_heads=1)
        return Gemma4ForCausalLM(Gemma4TextConfig(**ALONE | MOE | alike | sizes)).eval()
    return Gemma4UnifiedForCausalLM(Gemma4UnifiedTextConfig(**sizes)).eval()


def gemma4_assistant(target: PreTrainedModel, ordered: bool = False, seed: int = 1) -> PreTrainedModel:
    """The assistant of a target. `ordered`: it looks at half of its clusters of tokens only."""
    torch.manual_seed(seed)
    text = target.config.get_text_config()
    kind = "unified" if text.model_type == "gemma4_unified_text" else "text"
    sizes = SIZES | dict(
        vocab_size=text.vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        layer_types=KINDS,
        eos_token_id=text.eos_token_id,
    )
    if getattr(text, "attention_k_eq_v", False):
        sizes |= dict(attention_k_eq_v=True, num_global_key_value_heads=1)
    clusters = dict(use_ordered_embeddings=ordered, num_centroids=4, centroid_intermediate_top_k=2)
    if kind == "unified":
        config = Gemma4UnifiedAssistantConfig(
            text_config=Gemma4UnifiedTextConfig(**sizes), backbone_hidden_size=text.hidden_size, **clusters
        )
        model = Gemma4UnifiedAssistantForCausalLM(config)
    else:
        config = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**sizes, **ALONE, vocab_size_per_layer_input=0, num_kv_shared_layers=2),
            backbone_hidden_size=text.hidden_size,
            **clusters,
        )
        model = Gemma4AssistantForCausalLM(config)
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(text.vocab_size))
    return model.eval()
