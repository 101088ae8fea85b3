"""Writes a tiny Llama as a GGUF file, without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, KEY_HEADS, LAYERS = 4, 2, 2


def write(path: Path, kind: Kind, vocabulary: int, cut: Mapping[str, int] | None = None) -> None:
    """`cut`: how many rows of a tensor are written, where that is not all."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=256,
                         tie_word_embeddings=True)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    for name, parameter in model.named_parameters():
        module, _, _ = name.rpartition(".")
        data, key = parameter.detach(), f"{names.get_name(module)}.weight"
        heads = {"q_proj": HEADS, "k_proj": KEY_HEADS}.get(module.rpartition(".")[2])
        if heads:  # as llama.cpp's converter stores them: the halves of each head interleaved
            data = data.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        array = data[: (cut or {}).get(key)].contiguous().numpy()
        if data.dim() == 1:
            writer.add_tensor(key, array)
        else:
            stored = Kind.Q8_0 if "embed" in name else kind
            writer.add_tensor(key, gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
