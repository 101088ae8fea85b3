"""A model of tiny size, through transformers' real classes."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase


def small_llama(
    tokenizer: PreTrainedTokenizerBase, room: int = 256, layers: int = 2, **others: object
) -> LlamaForCausalLM:
    """Layers of random weights in float32, in eval mode. `others`: what else its config shall say."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=room,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **others,
    )
    return LlamaForCausalLM(config).eval()
