"""The folder of a model's files, and their origin. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from playground.errors import PlaygroundError


@dataclass(frozen=True)
class ModelFiles:
    """A folder that transformers can load.

    Attributes:
        name: a short name for people.
        origin: the source of the bytes, in one line.
        gguf: the name of the GGUF file in the folder; None for safetensors.
    """

    folder: Path
    name: str
    origin: str
    gguf: str | None = None


def cache_folder() -> Path:
    """Returns the folder for converted models. The environment variable PLAYGROUND_CACHE overrides it."""
    default = platformdirs.user_cache_dir("speculative-decoding-playground", appauthor=False)
    return Path(os.environ.get("PLAYGROUND_CACHE") or default).expanduser()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path in the same folder to write to. The file there replaces `path` once it is complete; if writing
    fails, `path` does not change."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def inspect(folder: Path, name: str, origin: str) -> ModelFiles:
    """Finds the weights in a folder without loading them.

    Raises:
        PlaygroundError: the folder holds no model, no safetensors, or several GGUF files.
    """
    configured = (folder / "config.json").is_file()
    if configured and any(folder.glob("*.safetensors")):
        return ModelFiles(folder, name, origin)
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelFiles(folder, name, origin, gguf=ggufs[0])
    if ggufs:
        raise PlaygroundError(
            f"{name} holds {len(ggufs)} GGUF files ({', '.join(ggufs[:3])}…), and it is unclear which to load. "
            "Put one into a folder of its own."
        )
    if configured:
        raise PlaygroundError(
            f"{name} has no safetensors weights. Pickled ones (.bin, .pt) are not loaded, because unpickling can run "
            "code. If you trust them, load them with transformers and save them again with `save_pretrained`."
        )
    raise PlaygroundError(
        f"{name} holds no model: it has neither a config.json nor a GGUF file. Choose a model with safetensors "
        "weights, the format of `save_pretrained`, or a folder with a single GGUF file."
    )
