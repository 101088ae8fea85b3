"""Finds the engine's library for this machine and binds it with ctypes.

The package has libraries for the common machines. Elsewhere the C compiler `cc`, if there is one, makes one at the
first start, which the cache folder keeps. Where neither works, torch computes, and `why_torch` says why.

PLAYGROUND_ENGINE=torch turns the engine off; any other value names the instruction set to use, such as "AVX2".
PLAYGROUND_ACTIVATIONS=int8 halves the integer work of wide passes: of the starter's choices at 605 positions, 32 are
then others than in float32; with int16, the default, none.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from playground.errors import on_one_line
from playground.models.cpu.native import build

FOLDER = Path(__file__).parent
TORCH, AMX, PLAIN = "torch", "AMX", "plain C"  # plain C is the reference of the tests: slower than torch
ELF_HEADER = 64
FOUR, FIVE, EIGHT, FOUR_K, FIVE_K, SIX_K, BFLOAT16, FLOAT16 = range(8)  # kinds of matrices; engine.h has their layouts


class Matrix(Structure):
    """engine.h's Matrix, as the other structures here are those of the same name."""

    _fields_ = [("data", c_void_p), ("bias", c_void_p), ("kind", c_int32), ("rows", c_int32), ("columns", c_int32)]


class Layer(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("query_key_value", "value", "out", "gate_up", "down")),
    ]


COUNTS = ("width", "inner", "heads", "groups", "head", "layers", "vocabulary", "wide", "embedding_kind")


class Model(Structure):
    _fields_ = [
        *((name, c_int32) for name in COUNTS),
        *((name, c_float) for name in ("epsilon", "scale")),
        ("layer", POINTER(Layer)),
        *((name, c_void_p) for name in ("embedding", "norm")),
        ("logits", Matrix),
    ]


class Cache(Structure):
    _fields_ = [*((name, c_void_p) for name in ("keys", "values", "cosines", "sines")), ("room", c_int32)]


class Pass(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("ids", "parents", "watched")),
        *((name, c_int32) for name in ("tokens", "branching", "watching", "start", "keep")),
        *((name, c_void_p) for name in ("logits", "highest", "hidden", "scratch")),
    ]


class Drafter(Structure):
    _fields_ = [
        ("model", POINTER(Model)),
        *((name, c_void_p) for name in ("embedding_norm", "hidden_norm")),
        *((name, Matrix) for name in ("join", "added")),
        ("ids", c_void_p),
        *((name, c_int32) for name in ("norm_residual", "norm_output")),
        ("epsilon", c_float),
    ]


class Step(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("ids", "parents", "hidden")),
        *((name, c_int32) for name in ("tokens", "base", "start", "position", "keep", "stride")),
        *((name, c_void_p) for name in ("logits", "output")),
    ]


class Draft(Structure):
    _fields_ = [
        ("text", Step),
        *((name, c_int32) for name in ("depth", "width", "size", "by_last")),
        ("stop_below", c_float),
        *((name, c_void_p) for name in ("cost", "refused", "ends")),
        ("ending", c_int32),
        *((name, c_void_p) for name in ("ids", "parents", "rows", "q", "logits", "output", "scratch")),
    ]


class Block(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("features", "x")),
        *((name, c_int32) for name in ("reading", "tokens", "start", "causal")),
        ("scratch", c_void_p),
    ]


class Functions(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("scratch", CFUNCTYPE(c_int64, POINTER(Model), c_int, c_int, c_int)),
        ("run", CFUNCTYPE(None, POINTER(Model), POINTER(Cache), POINTER(Pass), c_int)),
        ("gather", CFUNCTYPE(None, POINTER(Model), POINTER(Cache), c_int, c_void_p, c_int)),
        ("product_scratch", CFUNCTYPE(c_int64, c_int, c_int)),
        ("product", CFUNCTYPE(None, POINTER(Matrix), c_int, c_void_p, c_int, c_void_p, c_int, c_void_p)),
        ("draft_scratch", CFUNCTYPE(c_int64, POINTER(Drafter), POINTER(Draft), c_int)),
        ("step", CFUNCTYPE(None, POINTER(Drafter), POINTER(Cache), POINTER(Step), c_int, c_void_p)),
        ("draft", CFUNCTYPE(c_int32, POINTER(Drafter), POINTER(Cache), POINTER(Draft), c_int)),
        ("take_rows", CFUNCTYPE(None, POINTER(Matrix), c_void_p, c_int32, POINTER(Matrix))),
        ("block", CFUNCTYPE(None, POINTER(Model), POINTER(Cache), POINTER(Block), c_int)),
    ]


class Engine(NamedTuple):
    """The engine for one instruction set, `name`."""

    name: str
    functions: Functions


class Threads:
    """The number of threads of the engine's passes. Torch then computes on one thread: two teams would wait for each
    other's cores."""

    number = max(1, torch.get_num_threads())


def engine() -> Engine | None:
    """Returns the engine that computes on this machine; None where torch does."""
    return _found()[0]


def why_torch() -> str:
    """Returns why torch computes on this machine, as a clause; "" where the engine does."""
    return _found()[1]


def wide() -> bool:
    """True where activations have 16 bits, which is the default; 8 otherwise."""
    return os.environ.get("PLAYGROUND_ACTIVATIONS") != "int8"


def splits_activations() -> bool:
    """True where weights in bfloat16 are multiplied by AMX, with each activation as the sum of two bfloat16."""
    found = engine()
    return found is not None and found.name == AMX


@cache
def engines() -> tuple[Engine, ...]:
    """Returns the engines that can run here, the best first.

    Raises:
        OSError: no library can be loaded.
    """
    library = _library()
    library.engine_at.restype = POINTER(Functions)
    found: list[Engine] = []
    while pointer := library.engine_at(len(found)):
        functions = pointer.contents
        found.append(Engine(functions.name.decode(), functions))
    return tuple(found)


@cache
def _found() -> tuple[Engine | None, str]:
    wanted = os.environ.get("PLAYGROUND_ENGINE", "")
    if wanted == TORCH:
        return None, "PLAYGROUND_ENGINE is torch"
    if sys.byteorder != "little":
        return None, "the engine needs a little-endian processor"
    try:
        usable = engines()
    except (OSError, AttributeError) as error:
        return None, f"the engine cannot be loaded ({on_one_line(error, 300)})"
    found = next((each for each in usable if wanted == each.name or (not wanted and each.name != PLAIN)), None)
    if found:
        return found, ""
    if not wanted:
        return None, "this processor lacks the instructions that make the engine fast"
    return None, f"this machine cannot run PLAYGROUND_ENGINE={wanted[:40]}, only {', '.join(e.name for e in usable)}"


def _library() -> ctypes.CDLL:
    """Loads the package's library for this machine, or else one that is built here.

    Raises:
        OSError: neither is there and whole.
    """
    shipped = FOLDER / "built" / build.file_name(sys.platform, platform.machine().lower())
    reason = "the package has none for this machine"
    if shipped.is_file():
        try:
            _check_whole(shipped)
            return ctypes.CDLL(str(shipped))
        except OSError as error:  # damaged, or made for another C library
            reason = str(error)
    try:
        return ctypes.CDLL(str(build.on_this_machine()))
    except OSError as error:
        raise OSError(f"{reason}; {error}") from None


def _check_whole(path: Path) -> None:
    """Checks that an ELF file reaches to the end of its last table: Linux loads one that was cut short, and ends the
    process where it reads what is missing.

    Raises:
        OSError: it does not.
    """
    content = path.read_bytes()
    if content[:4] == b"\x7fELF" and len(content) >= ELF_HEADER:
        (at,), (size, count) = struct.unpack_from("<Q", content, 40), struct.unpack_from("<2H", content, 58)
        if len(content) < at + size * count:
            raise OSError(f"{path.name} is cut short")
