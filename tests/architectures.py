"""Tiny models of random weights of every causal architecture of transformers, from nothing but their config classes;
and the part of assets/help/targets.md that says what each of them proved.

`python -m tests.architectures` writes that part again.
"""

from __future__ import annotations

import dataclasses
from inspect import signature
from textwrap import wrap
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from playground.decoding.parity_check import FINE, TEXT, Proof, prove
from playground.decoding.runners.eager import EagerRunner
from playground.drafting_methods import HELP, TARGETS

LAYERS, WINDOW = 4, 6  # the window is shorter than the proof's text
SIZES: dict[str, Any] = {  # of those of these fields that a config has
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "dff"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "expert_ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_decoder_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "moe_latent_size"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "mamba_d_head"), 16),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank", "mamba_d_state"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "state_size"), 8),
    **dict.fromkeys(("ssm_state_size", "mamba_chunk_size", "chunk_size", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "context_length"), 256),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size"), WINDOW),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 64),
    **dict.fromkeys(("initializer_range", "init_std", "embed_init_std"), 0.2),
    "mamba_n_heads": 4,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 12,
    "is_decoder": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
ROPE = {"rope_type": "default", "rope_theta": 1e4}
ALIBI = "falcon with ALiBi"
PARTICULAR: dict[str, dict[str, Any]] = {  # by model type, what SIZES gets wrong
    "bamba": dict(attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=8),
    "codegen": dict(rotary_dim=4),
    "cohere_compass_text": dict(
        layer_types=SLIDING, rope_parameters={"sliding_attention": ROPE, "full_attention": ROPE}
    ),
    "cpmant": dict(dim_head=8, prompt_length=4),
    "dbrx": dict(
        attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0),
        ffn_config=dict(ffn_hidden_size=16, moe_num_experts=4, moe_top_k=2),
    ),
    "dots1": dict(n_shared_experts=1),
    "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8),
    "gemma3n_text": dict(layer_types=SLIDING, num_kv_shared_layers=2),
    "gpt_neo": dict(attention_types=[[["global", "local"], 2]]),
    "gptj": dict(rotary_dim=4),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2, mamba_n_heads=8, mamba_d_head=8),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "lfm2": dict(layer_types=["conv", "full_attention"] * 2),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "longcat_flash": dict(head_dim=4),
    "mamba2": dict(num_heads=8, head_dim=8),
    "mellum": dict(layer_types=SLIDING),
    "qwen4_exp_text": dict(
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=8, indexer_compress_ratio=2
    ),
    "reformer": dict(axial_pos_embds_dim=(16, 16), axial_pos_shape=(16, 16)),
    "xmod": dict(languages=("en_XX",), default_language="en_XX"),
    ALIBI: dict(alibi=True),
    "zaya": dict(num_experts_per_tok=1),
}

HEADING = "## What each architecture proved"
SAID = {
    "trees": "Chains and trees:",
    "chains": "Chains; trees are refused by what their caches and inputs are (recurrent states, chunked attention, "
    "attention to selected tokens, no positions):",
    "no trees": "Chains; the proof refuses trees:",
    "standard": "Standard decoding alone; the proof refuses drafts:",
    "none": "Refused, standard decoding too:",
    "no cache": "Refused when it is loaded, since it has no KV cache of transformers:",
    "unknown": "Not tried, since it could not be built tiny from its config class alone:",
}


def architectures() -> list[str]:
    """The model types of all that transformers calls causal language models. One that also sees or hears is there as
    that of its text."""
    known = [name for name, config_class in CONFIG_MAPPING.items() if config_class in MODEL_FOR_CAUSAL_LM_MAPPING]
    return [name for name in known if name in ("dbrx", "mpt") or not CONFIG_MAPPING[name].sub_configs] + [ALIBI]


def tiny(name: str) -> PreTrainedModel:
    """In float32 and eval mode. Raises whatever transformers raises where it cannot be built."""
    torch.manual_seed(0)
    config_class = CONFIG_MAPPING["falcon" if name == ALIBI else name]
    particular = PARTICULAR.get(name, {})
    fields = {field.name for field in dataclasses.fields(config_class)}
    sizes = {field: value for field, value in SIZES.items() if field in fields}
    if "kv_lora_rank" in fields:  # latent attention has as many keys as queries
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    config = config_class(**_kinds(config_class(), fields) | sizes | particular)
    return MODEL_FOR_CAUSAL_LM_MAPPING[config_class](config).float().eval()


def _kinds(default: PreTrainedConfig, fields: set[str]) -> dict[str, list[str]]:
    """A layer of each kind that the default has, in turn."""
    lists = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
    kinds = {name: list(dict.fromkeys(getattr(default, name, None) or ())) for name in fields.intersection(lists)}
    return {name: (found * LAYERS)[: max(LAYERS, len(found))] for name, found in kinds.items() if found}


def verdict(name: str) -> str:
    """A key of SAID."""
    try:
        model = tiny(name)
    except Exception:
        return "unknown"
    if "past_key_values" not in signature(model.forward).parameters:
        return "no cache"
    proof = prove(lambda: EagerRunner(model), FINE)
    if proof == Proof():
        return "trees" if EagerRunner(model).takes_trees else "chains"
    return "none" if proof.steps else "standard" if proof.chain else "no trees"


def written() -> str:
    """The part of the page."""
    names: dict[str, list[str]] = {key: [] for key in SAID}
    for name in sorted(architectures()):
        names[verdict(name)].append(name)
    parts = [
        HEADING,
        "Each target is tried when it is first run: a few random tokens are fed one by one, at once, as a draft and as "
        "a draft tree, and must give the same probabilities but for rounding. Where they do not, what needs it is "
        "refused, with what disagreed. In bfloat16 and float16, on a GPU, and with int8 or int4 weights, up to 0.15 of "
        f"what different texts differ by counts as rounding. The trial has {TEXT + 6} tokens: what begins later, such "
        "as at the end of a long sliding window, it does not see. A draft model is tried in the same way as it "
        "drafts: token by token, several of which are rolled back.",
        "The same trial on a tiny model of random weights, in float32, of every causal architecture of transformers "
        f"{transformers.__version__}, by model type:",
        *(f"- **{said}** {', '.join(names[key])}." for key, said in SAID.items() if names[key]),
    ]
    return "\n\n".join("\n".join(wrap(part, 130, subsequent_indent="  " * part.startswith("-"))) for part in parts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    page = HELP / f"{TARGETS}.md"
    others = page.read_text(encoding="utf-8").partition(HEADING)[0].rstrip()
    page.write_text(f"{others}\n\n{written()}\n", encoding="utf-8")
