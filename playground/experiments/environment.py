"""Where a lane ran: versions, device, dtype, weights."""

from __future__ import annotations

import datetime
import platform

import torch
import transformers

from playground import __version__
from playground.models.store import LoadedPair
from playground.trace import Environment, Lane


def describe(models: LoadedPair, lane: Lane) -> Environment:
    device = models.target.model.device
    weights = [models.target.weights]
    if lane.drafter == "assistant":
        weights.append(models.assistant.weights)
    return Environment(
        playground=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        platform=platform.platform(),
        device=device.type,
        device_name=_device_name(device),
        dtype=str(models.target.model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        weights=tuple(weights),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
