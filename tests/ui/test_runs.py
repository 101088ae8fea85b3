from __future__ import annotations

from playground.ui.runs import KEPT, added, choices
from tests.ui import fakes


def test_the_newest_run_comes_first_and_only_so_many_are_kept():
    runs = []
    comparisons = [fakes.comparison(tokens=n) for n in range(2, 2 + KEPT + 3)]
    for comparison in comparisons:
        runs = added(runs, comparison)
    assert runs == comparisons[:-KEPT - 1:-1]  # fmt: skip
    assert added(runs, None) == runs


def test_a_run_is_labelled_with_its_time_its_drafter_and_its_speed_up():
    assert not choices([], None)["visible"]
    shown = choices([fakes.comparison()], 0)
    (label, index), = shown["choices"]  # fmt: skip
    assert shown["visible"] and shown["value"] == index == 0
    _, drafter, speedup = label.split(" · ")
    assert drafter == "Prompt lookup (n-gram)" and speedup.endswith("×")
