"""What the loaders of published drafters share: those are networks trained for one target, over its hidden states."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playground.errors import PlaygroundError
from playground.models.load import LoadedModel, locate
from playground.models.weights import Weights
from playground.progress import Progress


def fetch(name: str, what: str, progress: Callable[[Progress], None]) -> tuple[Weights, dict[str, Any]]:
    """The files of a drafter, and its config. `what`: what it should be, to be told.

    Raises:
        PlaygroundError: it cannot be had, is GGUF, or its config.json is broken.
    """
    weights = locate(name, progress)
    if weights.gguf:
        raise PlaygroundError(f"{weights.name} is GGUF. {what} is loaded from safetensors with their config.json.")
    try:
        config = json.loads((weights.folder / "config.json").read_text(encoding="utf-8"))
        config.items()
    except (OSError, ValueError, AttributeError) as error:
        raise PlaygroundError(
            f"The config.json of {weights.name} cannot be read ({type(error).__name__}: {error}). Fetch it again."
        ) from error
    return weights, config


def check_made_for(target: LoadedModel, name: str, sizes: dict[str, int | None]) -> None:
    """Args:
        sizes: what the drafter was made for, as the names of a config's numbers; None where it does not say.

    Raises:
        PlaygroundError: the target's are others.
    """
    text = target.model.config.get_text_config(decoder=True)
    for key, ours in sizes.items():
        theirs = getattr(text, key)
        if ours not in (None, theirs):
            raise PlaygroundError(
                f"{name} cannot draft for {target.name}: it was made for a target whose {key} is {ours}, and here it "
                f"is {theirs}. Choose the target that it was made for, or a drafter made for this one."
            )
