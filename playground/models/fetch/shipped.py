"""The drafters of assets/drafters: stored in 8 bits, and written out in full into the cache, once.

`weights.safetensors.gz` holds each matrix as int8 and, under its name and "_scale", a float16 scale a row; the other
tensors are unchanged. Parts that the starter has too are left out: its rows of the head, and its tokenizer. The folder
that is written out has the form of `distil`'s, in bfloat16, so that every loader, `export-drafter` and other engines
read it.

`python -m playground.models.fetch.shipped FOLDER` packs a folder that `distil` wrote into assets/drafters.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from playground.errors import PlaygroundError
from playground.models.fetch import starter
from playground.models.fetch.files import cache_folder
from playground.presets import SHIPPED
from playground.progress import Progress

PACKED = "weights.safetensors.gz"
SCALE = "_scale"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
MOST = 127  # the largest int8 of a symmetric range


def written_out(folder: Path, progress: Callable[[Progress], None]) -> Path:
    """Returns a folder with whole weights: the folder itself, or for a shipped drafter its copy in the cache.

    Raises:
        PlaygroundError: the starter cannot be fetched, or the cache folder cannot be written.
    """
    packed = folder / PACKED
    if folder.resolve().parent != SHIPPED or not packed.is_file():
        return folder
    target = starter.fetch(progress)
    stored = packed.read_bytes()
    digest = hashlib.sha256(stored + target.origin.encode()).hexdigest()[:8]
    whole = cache_folder() / f"{folder.name}-{digest}"
    try:
        with FileLock(cache_folder() / "drafters.lock"):
            if not whole.is_dir():
                _write_out(folder, unpacked(stored, target.folder), target.folder, whole)
    except OSError as error:
        raise PlaygroundError(
            f"The drafter {folder.name} cannot be written to the cache folder ({error}). "
            "Make room there, or set PLAYGROUND_CACHE to a writable folder."
        ) from error
    return whole


def _write_out(folder: Path, state: dict[str, Tensor], target: Path, whole: Path) -> None:
    """Writes `whole`, which is complete as soon as it exists."""
    with tempfile.TemporaryDirectory(dir=whole.parent) as work:
        part = Path(work, "part")
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns(PACKED))
        if (folder / "generation_config.json").is_file():  # a model of its own: the only kind with a tokenizer
            for name in TOKENIZER:
                shutil.copy(target / name, part)
        save_file(state, part / "model.safetensors", metadata={"format": "pt"})
        os.replace(part, whole)


def packed(state: dict[str, Tensor]) -> bytes:
    """Packs tensors in 8 bits, without a head that `unpacked` finds in the target."""
    stored = {}
    for name, tensor in state.items():
        if name in ("lm_head.weight", "t2d") and "d2t" in state:
            continue
        if not tensor.is_floating_point() or tensor.dim() != 2:
            stored[name] = tensor
            continue
        scale = (tensor.float().abs().amax(dim=1, keepdim=True) / MOST).half()
        scale[scale == 0] = 1
        stored[name] = (tensor / scale.float()).round().clamp(-MOST, MOST).to(torch.int8)
        stored[name + SCALE] = scale
    return gzip.compress(save(stored), mtime=0)


def unpacked(stored: bytes, target: Path) -> dict[str, Tensor]:
    """Unpacks the tensors, with matrices in bfloat16. `target`: the starter's folder, whose embedding is also its
    head."""
    read = load(gzip.decompress(stored))
    state = {name: tensor for name, tensor in read.items() if not name.endswith(SCALE)}
    for name in state.keys() & {name.removesuffix(SCALE) for name in read if name.endswith(SCALE)}:
        state[name] = (state[name].float() * read[name + SCALE].float()).bfloat16()
    if "d2t" in state:
        ids = torch.arange(len(state["d2t"])) + state["d2t"]
        with safe_open(target / "model.safetensors", "pt") as file:
            embedding = file.get_tensor("model.embed_tokens.weight")
        state["lm_head.weight"] = embedding[ids].bfloat16()
        state["t2d"] = torch.zeros(len(embedding), dtype=torch.bool).index_fill_(0, ids, True)
    return state


def main() -> None:
    folder = Path(sys.argv[1])
    state = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    out = SHIPPED / folder.name
    out.mkdir(exist_ok=True)
    (out / PACKED).write_bytes(packed(state))
    for name in ("config.json", "generation_config.json", "README.md"):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)


if __name__ == "__main__":
    main()
