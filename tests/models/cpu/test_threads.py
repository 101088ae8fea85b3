"""The number of threads, with a fake torch and a fake clock."""

from __future__ import annotations

import itertools

import pytest
import torch

from playground.models.cpu import threads
from playground.models.cpu.threads import choose_threads


class Cpu:
    """`seconds`: of a pass, by the number of threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], used: int) -> None:
        self.now, self.used, self.seconds, self.passes = 0.0, used, seconds, 0
        monkeypatch.setattr(threads, "most_threads", lambda: max(seconds))
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.used)
        monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(self, "used", n))

    def run_pass(self) -> None:
        self.now += self.seconds[self.used]
        self.passes += 1

    def choose(self) -> bool:
        return choose_threads(self.run_pass, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("seconds", "used", "chosen"),
    [
        ({1: 0.020, 2: 0.014}, 2, 2),
        ({1: 0.020, 2: 0.060}, 2, 1),
        ({1: 0.020, 2: 0.014}, 1, 2),
        ({1: 0.019, 2: 0.020}, 2, 2),
        ({1: 0.019, 2: 0.020}, 1, 2),
        ({1: 0.050, 4: 0.020, 8: 0.040}, 8, 4),
    ],
    ids=["idle", "shared cores", "idle again", "hardly any difference", "whatever was in use", "half of the cores"],
)
def test_fewer_threads_than_all_are_set_if_they_are_clearly_faster(monkeypatch, seconds, used, chosen):
    cpu = Cpu(monkeypatch, seconds, used)
    assert cpu.choose() == (chosen != used)
    assert cpu.used == chosen


@pytest.mark.parametrize(
    ("slowed", "chosen"),
    [({0, 1, 2, 3, 4, 5}, 2), ({1, 4, 7, 10}, 2), ({*range(15)} - {1, 5, 10}, 1)],
    ids=["a burst at the start", "now and then", "most of the time"],
)
def test_other_programs_decide_by_how_many_passes_they_slow(monkeypatch, slowed, chosen):
    """`slowed`: the passes on both cores, in turn, that take 100 ms more."""
    cpu = Cpu(monkeypatch, {1: 0.0110, 2: 0.0095}, 2)
    run_pass, passes = cpu.run_pass, itertools.count()

    def disturbed() -> None:
        run_pass()
        if cpu.used == 2 and next(passes) in slowed:
            cpu.now += 0.1

    cpu.run_pass = disturbed
    assert cpu.choose() == (chosen != 2)
    assert cpu.used == chosen


def test_a_single_core_has_no_choice(monkeypatch):
    cpu = Cpu(monkeypatch, {1: 0.020}, 1)
    assert not cpu.choose() and cpu.passes == 0
