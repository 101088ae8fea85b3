"""The headers of safetensors files, read without torch and without the tensors."""

from __future__ import annotations

import gzip
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

HEADER_BYTES = 100_000_000  # safetensors' own limit


def header(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tensors of a safetensors file, which may be compressed (.gz): dtype, shape and data_offsets.

    Raises:
        ValueError: the file is incomplete, or no safetensors file.
    """
    compressed = path.suffix == ".gz"
    with gzip.open(path) if compressed else path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_BYTES
        if length >= HEADER_BYTES:
            raise ValueError(f"{path.name} is no safetensors file")
        tensors = json.loads(file.read(length))
    tensors.pop("__metadata__", None)
    held = sum(abs(end - start) for start, end in (tensor["data_offsets"] for tensor in tensors.values()))
    if not compressed and held > path.stat().st_size:
        raise ValueError(f"{path.name} holds less than its header says")
    return tensors


def headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the tensors of all safetensors files in the folder, in the form of `header`; broken files are left out."""
    tensors: dict[str, dict[str, Any]] = {}
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.gz")]):
        with suppress(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
            tensors |= header(path)
    return tensors
