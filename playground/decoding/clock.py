"""Time and energy of a run: a clock that waits for the device, and a meter of the energy that the device has used.

The meter reads NVIDIA's own counter, or the RAPL counter of an x86 package. Both count everything on the device, other
programs included. Sources: NVML's nvmlDeviceGetTotalEnergyConsumption; Linux,
Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

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


RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts the energy used since it was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._read()

    def joules(self) -> float | None:
        """Returns the joules used since then; None where the device has no counter that this user may read."""
        now = self._read()
        if not now or now.keys() != self._start.keys():
            return None
        spent = 0
        for zone, before in self._start.items():
            spent += now[zone] - before
            if now[zone] < before:  # a RAPL counter starts again at 0 once it has reached its range
                spent += _range(zone)
        return spent / 1e6

    def _read(self) -> dict[str, int]:
        """Returns the microjoules of each counter, by its name; empty where there is none."""
        if self._device.type == "cuda":
            return _nvml(self._device)
        found = {}
        if self._device.type == "cpu":
            with suppress(OSError):  # many systems let only root read it
                for zone in RAPL.glob("intel-rapl:?"):  # packages; the names of their parts have two numbers
                    found[str(zone)] = int((zone / "energy_uj").read_text())
        return found


def _nvml(device: torch.device) -> dict[str, int]:
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return {uuid: 1000 * pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(uuid))}
    except Exception:  # no library, no driver, or a GPU older than the counter: each raises another error
        return {}


def _range(zone: str) -> int:
    return int((Path(zone) / "max_energy_range_uj").read_text())
