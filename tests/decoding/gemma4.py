"""Gemma 4 targets and assistants of tiny size, through transformers' own classes, in float32."""

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

KINDS = ("text", "whole", "moe", "unified")
WIDTH, WINDOW = 32, 6
SIZES = dict(
    hidden_size=WIDTH,
    intermediate_size=48,
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
TWO_LAYERS = dict(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
FOUR_LAYERS = dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
SMALL = dict(num_kv_shared_layers=1, hidden_size_per_layer_input=4)
MOE = dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16)
KEYS_ARE_VALUES = dict(attention_k_eq_v=True, num_global_key_value_heads=1)


def gemma4_target(kind: str, vocab: int) -> PreTrainedModel:
    """`kind`: text (an input per layer, and a layer that takes its keys and values from another), whole (the same, in
    the class of the published models), moe (experts, values that are keys in full attention) or unified. What
    the next token is depends most on the last one."""
    torch.manual_seed(0)
    sizes = SIZES | dict(vocab_size=vocab, vocab_size_per_layer_input=vocab, eos_token_id=vocab - 1)
    if kind == "text":
        model = Gemma4ForCausalLM(Gemma4TextConfig(**sizes | FOUR_LAYERS | SMALL))
    elif kind == "whole":
        text = Gemma4TextConfig(**sizes | FOUR_LAYERS | SMALL)
        model = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, tie_word_embeddings=False))
        model.generation_config.update(eos_token_id=vocab - 1, pad_token_id=0)
    elif kind == "moe":
        alone = dict(hidden_size_per_layer_input=0)
        model = Gemma4ForCausalLM(Gemma4TextConfig(**sizes | TWO_LAYERS | MOE | KEYS_ARE_VALUES | alone))
    else:
        model = Gemma4UnifiedForCausalLM(Gemma4UnifiedTextConfig(**sizes | TWO_LAYERS))
    model.get_output_embeddings().weight.data[vocab - 1] *= 0.5  # some texts end
    return _quietened(model, 0.3)


def gemma4_assistant(target: PreTrainedModel, ordered: bool = False) -> PreTrainedModel:
    """An assistant that knows what the last token tells of the next one, so that some of its drafts are accepted.
    `ordered`: it looks at three of its four clusters of tokens."""
    torch.manual_seed(1)
    text = target.config.get_text_config()
    sizes = SIZES | TWO_LAYERS | dict(vocab_size=text.vocab_size, eos_token_id=text.eos_token_id)
    if getattr(text, "attention_k_eq_v", False):
        sizes |= KEYS_ARE_VALUES
    own = dict(
        backbone_hidden_size=WIDTH, use_ordered_embeddings=ordered, num_centroids=4, centroid_intermediate_top_k=3
    )
    if text.model_type == "gemma4_unified_text":
        config = Gemma4UnifiedAssistantConfig(text_config=Gemma4UnifiedTextConfig(**sizes), **own)
        model = Gemma4UnifiedAssistantForCausalLM(config)
    else:
        no_inputs_per_layer = dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0)
        small = Gemma4TextConfig(**sizes, **no_inputs_per_layer, num_kv_shared_layers=2)
        model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=small, **own))
    with torch.no_grad():
        model.pre_projection.weight[:, :WIDTH] += torch.eye(WIDTH) - model.pre_projection.weight[:, :WIDTH]
        model.pre_projection.weight[:, WIDTH:] *= 0.2
        model.lm_head.weight.copy_(target.get_output_embeddings().weight)
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(text.vocab_size))
    return _quietened(model, 0.3)


@torch.no_grad()
def _quietened(model: PreTrainedModel, scale: float) -> PreTrainedModel:
    """Scales what attention and feed-forward add to the hidden states."""
    norms = ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm")
    for name, module in model.named_modules():
        if name.endswith(norms):
            module.weight.mul_(scale)
    return model.eval()
