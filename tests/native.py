"""Tiny checkpoints of targets with MTP layers of their own, in the layout that they are published in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    MellumConfig,
    MellumForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

V, DEPTH, WIDTH = 40, 2, 32  # vocabulary, the target's own layers, hidden size
SIZES = dict(
    vocab_size=V,
    hidden_size=WIDTH,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_attention_heads=4,
    num_experts_per_tok=2,
    eos_token_id=V - 1,
    bos_token_id=0,
    pad_token_id=0,
    initializer_range=0.08,
)
ROUTED = dict(n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1)


def deepseek(layers: int) -> PreTrainedModel:
    heads = dict(kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, v_head_dim=6, qk_nope_head_dim=8)
    config = DeepseekV3Config(**SIZES, **ROUTED, **heads, num_key_value_heads=4, num_hidden_layers=layers)
    return DeepseekV3ForCausalLM(config)


def glm(layers: int) -> PreTrainedModel:
    config = Glm4MoeConfig(**SIZES, **ROUTED, num_key_value_heads=2, head_dim=8, num_hidden_layers=layers)
    return Glm4MoeForCausalLM(config)


def mellum(layers: int) -> PreTrainedModel:
    """Its window (6) is far shorter than the texts here; the MTP layer is of the sliding kind, too."""
    kinds = ["full_attention"] + ["sliding_attention"] * (layers - 1)
    more = dict(num_experts=4, num_key_value_heads=2, head_dim=8, sliding_window=6, layer_types=kinds)
    return MellumForCausalLM(MellumConfig(**SIZES, **more, num_hidden_layers=layers))


def glm_lite(layers: int) -> PreTrainedModel:
    """Its config says nothing of MTP layers in transformers' words."""
    heads = dict(kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, v_head_dim=6, qk_nope_head_dim=8)
    routed = dict(n_routed_experts=4, n_group=1, topk_group=1)
    config = Glm4MoeLiteConfig(**SIZES, **routed, **heads, num_key_value_heads=4, num_hidden_layers=layers)
    return Glm4MoeLiteForCausalLM(config)


def qwen(layers: int) -> PreTrainedModel:
    """A recurrent layer and one of full attention; MTP layers are of the second kind."""
    kinds = ["linear_attention"] + ["full_attention"] * (layers - 1)
    linear = dict(linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4)
    more = dict(num_key_value_heads=2, head_dim=8, layer_types=kinds)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES, **linear, **more, num_hidden_layers=layers))


TARGETS: dict[str, Callable[[int], PreTrainedModel]] = {
    "deepseek": deepseek,
    "glm": glm,
    "mellum": mellum,
    "glm lite": glm_lite,
    "qwen": qwen,
}


def save_native(family: str, layers: int, folder: Path, tokenizer: PreTrainedTokenizerBase, vocab: int = V) -> Path:
    """Writes a target of random weights with so many MTP layers. They are made so that about half of what they draft is
    what the target chooses: both go mostly by the last token."""
    torch.manual_seed(0)
    whole = TARGETS[family](DEPTH + layers)  # an MTP layer holds a decoder layer, stored after the target's last
    whole.resize_token_embeddings(vocab)
    with torch.no_grad():
        whole.get_input_embeddings().weight.normal_()
        whole.get_output_embeddings().weight.normal_()
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    state = load_file(folder / "model.safetensors")
    for at in range(DEPTH, DEPTH + layers):
        fuse = torch.cat([torch.eye(WIDTH), torch.zeros(WIDTH, WIDTH)], dim=1) + 0.05 * torch.randn(WIDTH, 2 * WIDTH)
        extras = {"eh_proj": fuse, **dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), torch.ones(WIDTH))}
        if family in ("mellum", "qwen"):  # a layout of its own, with a single layer
            names = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}
            for key in [key for key in state if key.startswith(f"model.layers.{at}.")]:
                state[key.replace(f"model.layers.{at}.", f"mtp.layers.{at - DEPTH}.")] = state.pop(key)
            state |= {f"mtp.{names.get(key, 'norm')}.weight": tensor.clone() for key, tensor in extras.items()}
        else:
            state |= {f"model.layers.{at}.{key}.weight": tensor.clone() for key, tensor in extras.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    config = json.loads((folder / "config.json").read_text())
    count = "mtp_num_hidden_layers" if family == "qwen" else "num_nextn_predict_layers"
    config |= {"num_hidden_layers": DEPTH, count: layers}
    config.pop("num_mtp_layers", None)
    for key in ("layer_types", "mlp_layer_types"):
        if key in config:
            config[key] = config[key][:DEPTH]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def native_places():
    """transformers knows where a published model has its MTP layers by their number; here they are others."""
    patch = pytest.MonkeyPatch()
    places = [rf"model\.layers\.{at}\..*" for at in range(DEPTH, DEPTH + 3)]
    for model in (DeepseekV3ForCausalLM, Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM):
        for kind in model.__mro__[:2]:
            patch.setattr(kind, "_keys_to_ignore_on_load_unexpected", places)
    yield
    patch.undo()
