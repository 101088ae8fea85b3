from __future__ import annotations

from dataclasses import replace

from playground.ui.compare.shown import KEPT, Shown, added, choices, index_of
from tests.ui import fakes


def shown(tokens: int) -> Shown:
    comparison = fakes.comparison(tokens=tokens)
    return Shown(comparison, comparison.others[0].lane.name)


def test_the_newest_run_comes_first_and_only_so_many_are_kept():
    runs = []
    comparisons = [shown(n) for n in range(2, 2 + KEPT + 3)]
    for comparison in comparisons:
        runs = added(runs, comparison)
    assert runs == comparisons[:-KEPT - 1:-1]  # fmt: skip
    assert added(runs, None) == runs


def test_a_repeated_run_keeps_its_entry():
    runs = [shown(3), shown(2)]
    again = replace(runs[1], held=replace(runs[1].comparison, repeats=(runs[1].comparison.lanes,)))
    assert added(runs, again) == [runs[0], again] and index_of(runs, again) == 1


def test_a_run_is_labelled_with_its_time_its_drafter_and_its_speed_up():
    assert not choices([], None, 0)["visible"]
    update = choices([shown(60)], 0, 330)
    (label, index), = update["choices"]  # fmt: skip
    assert update["visible"] and update["value"] == index == 0
    at, drafter, speedup = label.split(" · ")
    assert drafter == "Prompt lookup" and speedup.endswith("× (one run)")
    assert at == "05:30", "midnight in UTC"
