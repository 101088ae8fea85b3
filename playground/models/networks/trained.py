"""Drafters trained by `python -m playground distil`: a folder with config.json, model.safetensors and a card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from playground.errors import PlaygroundError
from playground.models.fetch.files import ModelFiles
from playground.models.fetch.shipped import written_out
from playground.models.load import LoadedDrafter, LoadedModel, explained
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.made_for import check_draft_ids, check_made_for
from playground.models.networks.mtp import MtpLayer, load_native
from playground.presets import NATIVE, SHIPPED, folder_of
from playground.progress import Progress

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class TrainedConfig:
    """The config.json of a trained drafter. `kind`: a drafting method. `target`: the model that the drafter was trained
    for. `steps`: the number of positions ahead that it was trained on; for heads, their number."""

    kind: str
    target: str
    hidden_size: int
    vocab_size: int
    draft_vocabulary: int
    steps: int


def build(config: TrainedConfig, target: LoadedModel, draft_ids: Tensor) -> MtpLayer | ParallelHeads:
    """Builds the network, with weights that are not trained. `draft_ids`: (draft vocabulary,)."""
    if config.kind == "mtp":
        return MtpLayer(target.model, draft_ids)
    return ParallelHeads(target.model, draft_ids, config.steps)


def load_mtp(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Loads the target's own layers, or a layer that was trained for it, by `load_native` or `load_trained`, which name
    the errors."""
    return (load_native if name == NATIVE else load_trained)(name, target, progress)


def load_trained(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Loads a trained drafter.

    Raises:
        PlaygroundError: there is no such drafter, it was trained for another target, its files are broken, or memory
            ran out.
    """
    folder = folder_of(name)
    files = written_out(folder, progress)
    try:
        config = TrainedConfig(**json.loads((files / CONFIG).read_text(encoding="utf-8")))
        state = load_file(files / WEIGHTS)
        draft_ids = state["draft_ids"].long()
    except (OSError, ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        raise PlaygroundError(
            f"No trained drafter found at {folder.name!r} ({type(error).__name__}: {error}). Name a folder that "
            "`python -m playground distil` wrote."
        ) from error
    text = target.model.config.get_text_config(decoder=True)
    sizes = [
        ("hidden states of {}", config.hidden_size, text.hidden_size),
        ("a vocabulary of {}", config.vocab_size, text.vocab_size),
    ]
    remedy = "Choose its own target, or train a drafter for this one."
    check_made_for(folder.name, target.name, sizes, made_for=config.target, remedy=remedy)
    check_draft_ids(folder.name, draft_ids, text.vocab_size)
    origin = "shipped" if folder.parent == SHIPPED else "folder"
    weights = ModelFiles(files, folder.name, f"{origin} {folder.name}")
    with explained(weights, target.model.device):
        network = build(config, target, draft_ids).to(target.model.device)
    try:
        network.load_state_dict({**state, "draft_ids": draft_ids})
    except RuntimeError as error:
        raise PlaygroundError(
            f"{folder.name} does not fit {target.name}: its weights have other shapes. Train a drafter for this target."
        ) from error
    return LoadedDrafter(network.eval().requires_grad_(False), weights.name, weights.origin)


def save_trained(network: nn.Module, config: TrainedConfig, folder: Path, card: str) -> None:
    """Writes the drafter in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        key: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor.int()
        for key, tensor in network.state_dict().items()
    }
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")
