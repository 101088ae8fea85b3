"""Where a lane ran: versions, device, dtype, weights."""

from __future__ import annotations

import datetime
import platform

import torch
import transformers

from playground import __version__
from playground.lane import Lane
from playground.models.device import device_name
from playground.models.quantised import precision
from playground.models.store import LoadedPair
from playground.trace import Environment


def describe(models: LoadedPair, lane: Lane) -> Environment:
    device = models.target.model.device
    weights = [models.target.weights]
    if lane.drafter != "none" and models.drafting:
        weights.append(models.drafting.weights)
    return Environment(
        playground=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        platform=platform.platform(),
        device=device.type,
        device_name=device_name(device),
        dtype=precision(models.target.model),
        threads=torch.get_num_threads(),
        weights=tuple(weights),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        pass_times=models.target.pass_times,
    )
