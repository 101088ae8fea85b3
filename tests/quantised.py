"""A tiny model with weights of eight or four bits, and one without."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from playground.models.fetch.files import ModelFiles
from playground.models.load import Format, read

V = 40
SIZES = dict(vocab_size=V, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2)
ENDS = dict(eos_token_id=V - 1, bos_token_id=0, pad_token_id=0)


def llama(layers: int = 2, **others: object) -> LlamaForCausalLM:
    """Random weights in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, **ENDS, num_hidden_layers=layers, initializer_range=0.2, **others)
    return LlamaForCausalLM(config).eval()


def quantised(
    model: PreTrainedModel, folder: Path, bits: int | None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """The model as it is read back, computing in `dtype`."""
    disable_progress_bar()
    model.save_pretrained(folder)
    return read(ModelFiles(folder, "tiny", "folder tiny"), Format(dtype, torch.device("cpu"), bits))
