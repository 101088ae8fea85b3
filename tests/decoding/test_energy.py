"""Energy counters, made as files."""

from __future__ import annotations

import pytest
import torch

from playground.decoding import clock
from playground.decoding.clock import EnergyMeter

CPU = torch.device("cpu")


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """Sets the counter of a package, in microjoules."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the package, which must not be counted twice
    (zone / "max_energy_range_uj").write_text("1000000000")
    monkeypatch.setattr(clock, "RAPL", tmp_path)
    return lambda value: (zone / "energy_uj").write_text(f"{value}\n")


def test_joules_are_what_the_counter_has_gained(counter):
    counter(5_000_000)
    meter = EnergyMeter(CPU)
    counter(7_500_000)
    assert meter.joules() == 2.5


def test_a_counter_that_starts_again_goes_on(counter):
    counter(999_000_000)
    meter = EnergyMeter(CPU)
    counter(1_000_000)
    assert meter.joules() == 2.0


def test_without_a_counter_that_can_be_read_the_energy_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "RAPL", tmp_path / "none")
    assert EnergyMeter(CPU).joules() is None
