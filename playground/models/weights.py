"""Where a model's files lie, and where they came from. Knows nothing of torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from playground.errors import PlaygroundError


@dataclass(frozen=True)
class Weights:
    """A folder that transformers can load.

    `origin` says in one line where its bytes came from. `gguf` is the name of the file inside the folder that holds the
    weights as GGUF; None where they are safetensors.
    """

    folder: Path
    origin: str
    gguf: str | None = None


def cache_folder() -> Path:
    """The folder in which the playground keeps what it converts. The variable PLAYGROUND_CACHE moves it."""
    default = platformdirs.user_cache_dir("speculative-decoding-playground", appauthor=False)
    return Path(os.environ.get("PLAYGROUND_CACHE") or default).expanduser()


def inspect(folder: Path, name: str, origin: str) -> Weights:
    """Finds the weights in a folder without loading them. `name` is what the user called it.

    Raises:
        PlaygroundError: the folder holds no model, several GGUF files, or no safetensors.
    """
    if (folder / "config.json").is_file():
        if not any(folder.glob("*.safetensors")):
            raise PlaygroundError(
                f"{name} has no safetensors weights. Pickled ones (.bin, .pt) are not loaded, because unpickling can "
                "run code. If you trust them, load them with transformers and write them again with `save_pretrained`."
            )
        return Weights(folder, origin)

    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if not ggufs:
        raise PlaygroundError(
            f"{name} holds no model: there is neither a config.json nor a .gguf file in it. Choose the folder that "
            "`save_pretrained` wrote, or one that holds a single GGUF file."
        )
    if len(ggufs) > 1:
        raise PlaygroundError(
            f"{name} holds {len(ggufs)} GGUF files ({', '.join(ggufs[:3])}…), and one is needed. "
            "Put the one to load into a folder of its own."
        )
    return Weights(folder, origin, gguf=ggufs[0])
