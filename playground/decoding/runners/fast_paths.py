"""Decides how a model's passes are run on this device: captured, if that gives what uncaptured passes give, and with
those of our CUDA kernels that agree with torch's and are faster.

Nobody can try every card, driver and model. So before a static model is first used, its passes run with torch's
kernels, uncaptured and captured, and with each choice of ours, captured: as a chain, as a tree and after the move of a
branch, after few entries, where each one counts, and after many, and in a cache that has grown. What fails, differs or
is slower is not used, and the trace says why. The choice is kept on disk for this device, model and version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import playground
import playground.models.cuda as cuda_kernels
from playground.decoding.runners.graphs import Graphs, graphs_for
from playground.decoding.sampling import Sampler
from playground.errors import on_one_line
from playground.lane import Request
from playground.models.attention import GROUPED
from playground.models.device import median_seconds
from playground.models.fetch.files import cache_folder, replacing
from playground.models.fused import FusedLayer

if TYPE_CHECKING:
    from playground.decoding.runners.static_model import StaticModel

DEVICES = ("cuda",)
TREE = (-1, 0, 0, 2, 3, 4, 5)  # parents of tokens after the first
BRANCH = (0, 2, 3, 4, 5, 6)  # of the tree: one that has to be moved
FEW, MANY = (0, 1, 3), 512  # entries before a pass; the passes after MANY are timed
WIDTHS = (1, 8)  # tokens of the passes that are timed
WIDE = 64  # tokens of a pass whose kernels take more of a processor's memory than it may have
SHARP = 3.0  # standard deviation of the keys, so that a few of many entries have most of the attention
# The most that logits may differ, as a share of what those of different texts differ by.
# Measured on an H200 in bfloat16: up to 0.057 over 36 layers, by rounding alone.
FINE, COARSE = 1e-3, 0.12


@dataclass(frozen=True)
class Paths:
    """How a static model runs its passes.

    Attributes:
        captured: whether they are captured.
        attention: `split_attention` for passes that verify.
        layers: the kernels of models/cuda/layer.py.
        refused: why others are not used, in words; "" if there are none.
    """

    attention: bool = False
    layers: bool = False
    refused: str = ""
    captured: bool = True

    @property
    def names(self) -> str:
        """The kernels in words, such as "split-key attention and fused layers"; "" for torch's."""
        return " and ".join(["split-key attention"] * self.attention + ["fused layers"] * self.layers)


def choose_paths(static: StaticModel) -> Paths:
    """Returns the fastest way that agrees with plain passes: the one kept, or found now, which takes about a second and
    overwrites the cache."""
    if static.model.device.type not in DEVICES:
        return Paths()
    file = _file(static)
    try:
        return Paths(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):  # no file yet, or a damaged one
        pass
    graphs = static.graphs
    try:
        paths = _fastest(static, _possible(static))
    finally:
        static.graphs = graphs
    if paths and "failed" not in paths.refused:  # memory may have been short for a moment
        _keep(file, paths)
    return paths or Paths()


def _file(static: StaticModel) -> Path:
    """Returns the file that keeps the choice for this device, model and version."""
    model, device = static.model, static.model.device
    cuda = (torch.cuda.get_device_name(device), torch.version.cuda) if device.type == "cuda" else ()
    kernels = [file.read_text() for file in sorted(Path(cuda_kernels.__file__).parent.glob("*.py"))]
    triton = importlib.metadata.version("triton") if find_spec("triton") else ""
    programs = playground.__version__, torch.__version__, triton, kernels
    layers = sorted({type(module).__name__ for module in model.modules()})
    made = model.config.to_json_string(use_diff=False), str(model.dtype), layers
    key = hashlib.sha256(json.dumps([cuda, programs, made]).encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"{key}.json"


def _keep(file: Path, paths: Paths) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            part.write_text(json.dumps(asdict(paths)))
    except OSError:  # a folder that cannot be written costs a second at each start
        pass


def _fastest(static: StaticModel, possible: Sequence[Paths]) -> Paths | None:
    """Returns the choice; None where nothing can be captured, and the captures that follow say why."""
    many = min(MANY, static.cache.cursor.length - WIDE)
    expected, other = _logits(static, many), _logits(static, many, shift=1)
    limit = FINE if static.model.dtype == torch.float32 else COARSE
    try:
        plain = _captured(static, Paths(), many)
    except RuntimeError:
        return None
    differs = _apart(_logits(static, many), expected, other)
    if not differs <= limit:
        return Paths(captured=False, refused=f"captured passes gave other logits than uncaptured ones ({differs:.2g})")
    best, best_s, refused = Paths(), plain, []
    for paths in possible:
        if best == possible[0]:  # all kernels of ours
            break
        try:
            seconds = _captured(static, paths, many)
            differs = _apart(_logits(static, many), expected, other)
        except Exception as error:  # compilers and drivers raise exceptions of any type
            refused.append(f"{paths.names} failed: {on_one_line(error, 120)}")
            continue
        if not differs <= limit:
            refused.append(f"{paths.names} gave other logits than torch's kernels (by {differs:.2g})")
        elif any(ours > theirs for ours, theirs in zip(seconds, plain, strict=True)):
            refused.append(f"{paths.names} took longer than torch's kernels")
        elif sum(seconds) < sum(best_s):
            best, best_s = paths, seconds
    best = replace(best, refused="; ".join(refused))
    if not (differs := _apart_when_grown(static, best, many)) <= limit:
        return Paths(
            captured=False, refused=f"captured passes over a cache that grew gave other logits ({differs:.2g})"
        )
    if _sampled(static, graphs_for(static.model.device)) != _sampled(static, None):
        return Paths(captured=False, refused="captured work sampled other tokens than uncaptured work")
    return best


def _apart(found: Sequence[Tensor], expected: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Returns the most that logits differ by, as a share of what those of different texts differ by."""
    return max(
        float((ours - theirs).norm() / (unlike - theirs).norm())
        for ours, theirs, unlike in zip(found, expected, other, strict=True)
    )


def _apart_when_grown(static: StaticModel, paths: Paths, many: int) -> float:
    """Compares captured passes with uncaptured ones in a cache that has grown, as `_apart` does."""
    length = static.cache.cursor.length
    _captured(static, paths, many)
    static.resize(length + WIDE)  # drops what was captured
    expected, other = _logits(static, many), _logits(static, many, shift=1)
    static.capture(0, (*WIDTHS, WIDE))
    differs = _apart(_logits(static, many), expected, other)
    static.resize(length)
    return differs


def _sampled(static: StaticModel, graphs: Graphs | None) -> list[int]:
    """Returns tokens that are sampled from random scores, captured by the third time if `graphs` capture."""
    device, noise = static.model.device, torch.Generator(static.model.device).manual_seed(0)
    sampler = Sampler(Request("numbers", temperature=0.8, top_p=0.9), device, graphs=graphs)
    for _ in range(3):
        sampler.prepare()
        scores = SHARP * torch.randn(WIDTHS[-1], static.vocab_size, generator=noise, device=device)
        choose = sampler.choices(scores, range(WIDTHS[-1]))
    return [choose(row) for row in range(WIDTHS[-1])]


def _possible(static: StaticModel) -> list[Paths]:
    model = static.model
    if not find_spec("triton"):
        return []
    attention = model.config._attn_implementation == GROUPED
    layers = any(isinstance(layer, FusedLayer) for layer in model.modules())
    every = [Paths(attention, layers), Paths(attention=attention), Paths(layers=layers)]
    return list(dict.fromkeys(paths for paths in every if paths.names))


def _logits(static: StaticModel, many: int, shift: int = 0) -> list[Tensor]:
    """Returns the logits of passes over random tokens, after 0, 1, 3 and `many` random entries, and where there is room
    after a window and as many. `shift`: what is added to their ids."""
    numbers, noise = random.Random(0), torch.Generator(static.model.device).manual_seed(0)
    for layer in static.cache.layers:
        layer.keys.normal_(std=SHARP, generator=noise)
        layer.values.normal_(generator=noise)
    last = static.cache.cursor.length - WIDE
    beyond = [start for window in static.cache.windows.values() if window and (start := window + many) <= last]
    passes: list[tuple[int, int, tuple[int, ...]]]
    passes = [(width, start, ()) for width in (*WIDTHS, WIDE) for start in (*FEW, many, *beyond)]
    passes += [(1 + len(TREE), start, TREE) for start in (FEW[-1], many, *beyond)]
    logits = []
    for tokens, start, tree in passes:
        ids = [(numbers.randrange(static.vocab_size) + shift) % static.vocab_size for _ in range(tokens)]
        logits.append(static.narrow(ids, start, tree)[0].clone())
        if tree:
            static.move(start + 1, BRANCH)
            logits.append(static.narrow(ids[:1], start + 1 + len(BRANCH))[0].clone())
    return logits


def _captured(static: StaticModel, paths: Paths, many: int) -> tuple[float, ...]:
    """Captures passes anew with these kernels, and returns the seconds of those of WIDTHS after `many` entries.

    Raises:
        RuntimeError: a capture failed.
    """
    static.graphs = graphs_for(static.model.device)
    static.use(paths)
    static.capture(0, (*WIDTHS, WIDE))
    if static.graphs.failure:
        raise RuntimeError(static.graphs.failure)
    return tuple(_seconds(static, width, many) for width in WIDTHS)


def _seconds(static: StaticModel, width: int, many: int) -> float:
    """Returns the median time of a pass of `width` tokens after `many` entries."""
    return median_seconds(partial(static.narrow, [0] * width, many), static.model.device)
