"""Folders of random weights in the formats that drafters are published in, for a target of tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel

from playground.models.networks.heads import MedusaHeads

BLOCK = 5
FROM_TRANSFORMERS = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}


def dflash_base(
    target: PreTrainedModel, layers: int = 2, read: tuple[int, ...] = (0, 1), **others: object
) -> MuseGlimmerAssistantModel:
    """The network of transformers, in eval mode. `read`: the target's layers whose outputs it sees."""
    torch.manual_seed(3)
    config = MuseGlimmerAssistantConfig(
        hidden_size=target.config.hidden_size,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        block_size=BLOCK,
        mask_token_id=target.config.vocab_size - 2,
        target_layer_ids=list(read),
        initializer_range=0.3,
        **{"layer_types": ["full_attention"] * layers, **others},
    )
    return MuseGlimmerAssistantModel(config).eval()


def zlab_config(target: PreTrainedModel, base: MuseGlimmerAssistantModel, **changes: object) -> dict[str, object]:
    """As z-lab's config.json has it."""
    config = base.config
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "attention_bias": False,
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": config.target_layer_ids},
        "dtype": "bfloat16",
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": config.layer_types,
        "model_type": "qwen3",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "num_target_layers": target.config.num_hidden_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_parameters["rope_theta"],
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": target.config.vocab_size,
        **changes,
    }


def zlab_folder(folder: Path, target: PreTrainedModel, base: MuseGlimmerAssistantModel, **changes: object) -> str:
    """A DFlash drafter as z-lab publishes it. `changes`: what its config.json shall say otherwise."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(zlab_config(target, base, **changes)))
    state = base.state_dict()
    for ours, theirs in FROM_TRANSFORMERS.items():
        state = {key.replace(ours, theirs): tensor for key, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def medusa_heads(target: PreTrainedModel, own: bool = True, blocks: int = 1) -> MedusaHeads:
    torch.manual_seed(4)
    heads = MedusaHeads(target, 3, blocks, own).eval()
    for module in heads.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
    return heads


def medusa_folder(folder: Path, heads: MedusaHeads, blocks: int = 1, **changes: object) -> str:
    """Medusa heads as text-generation-inference publishes them."""
    folder.mkdir()
    config = {"base_model_name_or_path": "owner/target", "medusa_num_heads": 3, "medusa_num_layers": blocks}
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(heads.heads.state_dict(), folder / "medusa_lm_head.safetensors")
    return str(folder)
