"""A LoRA adapter, as peft saves it, merged into a model's weights: W ← W + s B A, with s = α / r, or α / √r for rsLoRA
(Hu et al. 2021, LoRA; Kalajdzievski 2023, rsLoRA).

Merged, a pass costs what it cost before, so that two lanes differ by what they say alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from playground.errors import PlaygroundError, check

PREFIX = "base_model.model."
OTHER_KINDS = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")


@torch.no_grad()
def merge(model: nn.Module, folder: str) -> None:
    """Adds the adapter in `folder` to the model's weights, in place.

    Raises:
        PlaygroundError: it is no LoRA adapter, of another kind than is merged here, or made for another model.
    """
    name = Path(folder).name
    scale, tensors = _read(Path(folder).expanduser(), name)
    downs = {key.removesuffix("lora_A.weight") for key in tensors if key.endswith("lora_A.weight")}
    known = {f"{at}{part}.weight" for at in downs for part in ("lora_A", "lora_B")}
    check(
        bool(downs) and known == tensors.keys(),
        f"The adapter {name} holds other weights than pairs of lora_A and lora_B, which cannot be merged here. "
        "Merge it with peft, and name the merged model.",
    )
    modules = dict(model.named_modules())
    for at in downs:
        linear = modules.get(at.removeprefix(PREFIX).removesuffix("."))
        up, down = tensors[f"{at}lora_B.weight"], tensors[f"{at}lora_A.weight"]
        fits = type(linear) is nn.Linear and linear.weight.shape == (up.shape[0], down.shape[1])
        if not fits:
            raise PlaygroundError(
                f"The adapter {name} was made for another model, or the target's weights are quantised: "
                f"{at.removeprefix(PREFIX)}weight does not fit. Choose its own model, or another --dtype."
            )
        assert isinstance(linear, nn.Linear)
        weight = linear.weight
        weight += (scale * (up.float() @ down.float())).to(weight)


def _read(folder: Path, name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Its scale s, and its tensors by name."""
    try:
        config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise PlaygroundError(
            f"{name} holds no LoRA adapter that can be read ({type(error).__name__}: {error}). Give a folder with "
            "adapter_config.json and adapter_model.safetensors, as peft saves them."
        ) from None
    others = [key for key in OTHER_KINDS if config.get(key)]
    check(
        config.get("peft_type") == "LORA" and not others and config.get("bias", "none") == "none" and rank > 0,
        f"The adapter {name} is of a kind that cannot be merged here ({', '.join(others) or config.get('peft_type')}). "
        "Merge it with peft, and name the merged model.",
    )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), tensors
