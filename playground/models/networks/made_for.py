"""Shared by the loaders of networks that read a target's hidden states. Each network was trained for one target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from playground.errors import PlaygroundError
from playground.models.fetch.files import ModelFiles
from playground.models.load import locate
from playground.progress import Progress

REMEDY = "Choose the target that it was made for, or a drafter made for this one."


def fetch(name: str, what: str, progress: Callable[[Progress], None]) -> tuple[ModelFiles, dict[str, Any]]:
    """The files of a drafter, and its config. `what`: the expected kind, named in messages.

    Raises:
        PlaygroundError: it cannot be fetched, is GGUF, or its config.json is broken.
    """
    weights = locate(name, progress)
    if weights.gguf:
        raise PlaygroundError(
            f"{weights.name} is GGUF. {what} is loaded from safetensors with a config.json. Choose such files."
        )
    try:
        config = json.loads((weights.folder / "config.json").read_text(encoding="utf-8"))
        config.items()
    except (OSError, ValueError, AttributeError) as error:
        raise PlaygroundError(
            f"The config.json of {weights.name} cannot be read ({type(error).__name__}: {error}). Fetch it again."
        ) from error
    return weights, config


def check_made_for(
    name: str,
    target: str,
    sizes: Sequence[tuple[str, Any, Any]],
    *,
    made_for: str = "another target",
    remedy: str = REMEDY,
) -> None:
    """Args:
        name, target: names of the drafter and of the target.
        sizes: a description such as "hidden states of {}", the size that the drafter was made for (None if it does not
            say), and the target's.
        made_for: the target that the drafter was made for.

    Raises:
        PlaygroundError: a size differs from the target's.
    """
    for what, wanted, given in sizes:
        if wanted not in (None, given):
            raise PlaygroundError(
                f"{name} cannot draft for {target}: it was made for {made_for}, with "
                f"{what.format(_formatted(wanted))}, and this one has {_formatted(given)}. {remedy}"
            )


def draft_ids(state: Mapping[str, Tensor]) -> Tensor:
    """(draft vocabulary,), the target's token ids: adding `d2t` to a draft id gives the target's. Without `d2t` the
    whole vocabulary is drafted from."""
    ids = torch.arange(len(state["lm_head.weight"]))
    return ids + state["d2t"].long() if "d2t" in state else ids


def check_draft_ids(name: str, draft_ids: Tensor, vocab_size: int) -> None:
    """Raises:
    PlaygroundError: the draft vocabulary names tokens that the target does not have. On a GPU such an id would end
    the process's use of the device.
    """
    if draft_ids.numel() and not 0 <= int(draft_ids.min()) <= int(draft_ids.max()) < vocab_size:
        raise PlaygroundError(
            f"The files of {name} are damaged: its draft vocabulary has token {int(draft_ids.max()):,}, and the target "
            f"has ids from 0 to {vocab_size - 1:,}. Fetch it again, or choose another drafter."
        )


def _formatted(size: Any) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)
