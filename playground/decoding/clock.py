"""The time of a run: a clock that waits for the device."""

from __future__ import annotations

import time

import torch


class Clock:
    """Seconds since it was created. Each reading waits until the device has finished its work: one synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._zero = 0.0
        self._zero = self()

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter() - self._zero

    def back_to(self, reading: float) -> float:
        """Sets the clock back to an earlier reading, and returns the seconds that it then does not count."""
        seconds = self() - reading
        self._zero += seconds
        return seconds
