"""Writes and reads drafters in the layout of the speculators library, which vLLM serves.

Layout of speculators 0.9.0: config.json names the method, the target and the layer's config; the draft vocabulary is
numbered from 0, and adding `d2t` to a draft id gives the target's id. Embedding and full head are the target's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from playground.models.fetch.shipped import written_out
from playground.models.load import LoadedModel, tensors_of
from playground.models.networks.made_for import draft_ids
from playground.presets import folder_of
from playground.views.engine_commands import STARTER

SHARD = "9900KB"  # so that no file is over 10 MB
ARCHITECTURES = {"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator"}


def speculators_config(kind: str, target: LoadedModel, layer: PretrainedConfig, k: int) -> dict[str, Any]:
    """Returns the entries of config.json that all kinds share. `k`: tokens drafted by default."""
    text = target.model.config.get_text_config(decoder=True)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": STARTER if target.name == STARTER.split("/")[-1] else target.model.name_or_path,
                "architectures": target.model.config.architectures or [type(target.model).__name__],
            },
        },
        "transformer_layer_config": layer.to_diff_dict() | {"vocab_size": text.vocab_size},
        "target_hidden_size": text.hidden_size,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def vocabulary_maps(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Returns `d2t`, (draft vocabulary,) int64, and `t2d`, (vocab_size,) bool, for token ids in rising order; nothing
    for a full vocabulary."""
    if len(ids) == vocab_size:
        return {}
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids.cpu()] = True
    return {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": t2d}


def save_speculators(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], card: str) -> None:
    """Writes the drafter in bf16. `state`: the tensors, by the names of the layout."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    stored = {
        key: (tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor).cpu().contiguous()
        for key, tensor in state.items()
    }
    save_torch_state_dict(stored, folder, max_shard_size=SHARD)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def published_state(name: str) -> dict[str, Tensor]:
    """Reads the tensors of a folder in this layout, or in the playground's own."""
    return tensors_of(written_out(folder_of(name), lambda step: None))


def drafted(state: Mapping[str, Tensor]) -> Tensor:
    """Returns the target's token ids, (draft vocabulary,)."""
    return state["draft_ids"].long() if "draft_ids" in state else draft_ids(state)


def as_zlab(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Converts a DFlash drafter to z-lab's layout, which llama.cpp's converter and SGLang read. That layout has no
    reduced vocabulary: the network then drafts from the whole one, with the target's head."""
    layer = config["transformer_layer_config"]
    zlab = {
        **layer,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": config["block_size"],
        "num_target_layers": config["num_target_layers"],
        "dflash_config": {
            "mask_token_id": config["mask_token_id"],
            "target_layer_ids": [i - 1 for i in config["aux_hidden_state_layer_ids"]],
        },
        "dtype": "bfloat16",
    }
    return zlab, {key: tensor for key, tensor in state.items() if key not in ("lm_head.weight", "d2t", "t2d")}


def shares_head(state: Mapping[str, Tensor], target: PreTrainedModel) -> bool:
    """True where the drafter's head equals those rows of the target's, or the drafter has no head of its own."""
    if "lm_head.weight" not in state:
        return True
    head: Any = target.get_output_embeddings()
    rows = head.weight.detach()[draft_ids(state).to(target.device)].to(torch.bfloat16).cpu()
    return torch.equal(rows, state["lm_head.weight"].to(torch.bfloat16))
