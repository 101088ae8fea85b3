from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from playground import metrics
from playground.experiments.compare import passes_alone
from playground.metrics.measured import clearly_fastest
from playground.trace import Comparison, Memory
from playground.views import comparison as view  # noqa: F401  # registers its lines
from playground.views import drafters, table
from tests.examples import drafted_round, plain_round, trace

PLAIN = trace([plain_round(i, start_s=0.1 * i) for i in range(4)])
FAST = trace(
    [drafted_round([2 * i], accepted=1, own=2 * i + 1, start_s=0.1 * i, draft_s=0) for i in range(2)], "mtp", "Fast"
)
SLOW = trace([drafted_round([9], accepted=0, own=i, start_s=0.2 * i) for i in range(4)], drafter="ngram", name="Slow")


def rows(*others, repeats=()):
    return drafters.of(Comparison((PLAIN, *others), repeats=repeats))


def test_the_fastest_comes_first_and_a_loss_is_said():
    best, lost = rows(SLOW, FAST)
    assert (best.lane, best.speedup, best.tokens_per_pass, best.cost) == ("Fast", "2.00× (one run)", "2.00", "1.00")
    assert (best.acceptance, best.output, best.note) == ("100%", "identical", "")
    assert (lost.lane, lost.speedup, lost.best, lost.note) == ("Slow", "0.50× (one run)", False, drafters.LOST)
    assert "vLLM" in lost.runs_in


def test_a_spreadsheet_has_the_ratio_and_its_range():
    base, once = table.lines(Comparison((PLAIN, FAST)))
    assert (base["speedup"], once["speedup"], once["speedup_low"]) == (None, 2.0, None)
    half = trace([plain_round(i, start_s=0.05 * i, verify_s=0.05) for i in range(4)])
    _, again = table.lines(Comparison((PLAIN, FAST), repeats=((half,),)))
    found = metrics.measured(Comparison((PLAIN, FAST), repeats=((half,),)), "Fast")
    assert (again["speedup_low"], again["speedup_high"]) == found.interval and again["speedup"] == found.speedup


def test_only_a_lead_beyond_the_noise_is_best():
    assert not any(row.best for row in rows(SLOW, FAST)), "nothing ran again: the noise is unknown"
    quiet = rows(SLOW, FAST, repeats=((PLAIN, SLOW, FAST),))
    assert [(row.lane, row.best) for row in quiet] == [("Fast", True), ("Slow", False)]
    noisy = dataclasses.replace(PLAIN, rounds=tuple(plain_round(i, start_s=0.3 * i, verify_s=0.3) for i in range(4)))
    comparison = Comparison((PLAIN, SLOW, FAST), repeats=((noisy,),))
    assert not any(row.best for row in drafters.of(comparison))
    assert "No drafter clearly beat" in drafters.verdict(comparison)
    clear = Comparison((PLAIN, SLOW, FAST), repeats=((PLAIN, SLOW, FAST),))
    assert drafters.verdict(clear).startswith("Best here: Fast")


def test_nobody_is_best_where_everybody_lost():
    assert not any(row.best for row in rows(SLOW, repeats=((PLAIN, SLOW),)))


def test_a_lane_that_was_not_reached_comes_last_and_says_so():
    unreached = dataclasses.replace(trace([], drafter="tree", name="Late"), finish="stopped")
    found = rows(unreached, SLOW)
    assert [row.lane for row in found] == ["Slow", "Late"]
    assert (found[1].speedup, found[1].output) == ("–", "–") and found[1].note.startswith("not run")


def test_other_text_and_memory():
    other = trace([plain_round(0), plain_round(7, start_s=0.1)], drafter="ngram", name="Other")
    (row,) = rows(dataclasses.replace(other, memory=Memory(3_000_000, 1_000_000, 0, 0)))
    assert row.output.endswith("token 2") and row.memory == "4 MB"


def test_of_several_runs_of_a_lane_the_median_one_is_shown_and_all_make_the_interval():
    slower, slowest = (
        dataclasses.replace(PLAIN, rounds=tuple(plain_round(i, start_s=s * i, verify_s=s) for i in range(4)))
        for s in (0.2, 0.3)
    )
    comparison = Comparison((PLAIN, SLOW, FAST), repeats=((slowest, FAST), (slower,)))
    assert metrics.shown(comparison) == Comparison((slower, SLOW, FAST))
    found = metrics.measured(comparison, "Fast")
    assert (found.base, found.ours, found.runs, found.baselines) == (slower, FAST, 2, 3)
    assert found.speedup == metrics.speedup(slower, FAST)
    low, high = found.interval
    assert low < found.speedup < high
    twice = metrics.measured(Comparison((PLAIN, FAST), repeats=((slower,),)), "Fast")
    assert twice.base is slower, "of two the later, whichever is the slower"
    assert metrics.measured(Comparison((slower, FAST), repeats=((PLAIN,),)), "Fast").base is PLAIN


@pytest.mark.parametrize("noise", [0.06, 0.12])
@pytest.mark.parametrize("drafters", range(2, 13))
def test_of_drafters_that_are_alike_one_is_seldom_called_the_best(drafters, noise):
    """Runs as `experiments.compare.passes_alone` repeats them: the fastest of the first pass run again. All drafters
    are twice as fast as the baseline, which `clearly_fastest` has to be told from them."""
    rng = np.random.default_rng(drafters)
    names, draws = [f"drafter {i}" for i in range(drafters)], 1500
    crowned = 0
    for _ in range(draws):
        run = lambda name: (1 if name == "Standard" else 2) * rng.lognormal(0, noise)  # noqa: E731
        speeds = {name: [run(name)] for name in ("Standard", *names)}
        ranking = ["Standard", *sorted(names, key=lambda name: -speeds[name][0])]
        for ranks in passes_alone(drafters):
            for rank in ranks:
                speeds[ranking[rank]].append(run(ranking[rank]))
        crowned += clearly_fastest(speeds, [*speeds]) is not None
    assert crowned <= 0.05 * draws


def test_a_lead_beyond_the_noise_is_told_whether_one_drafter_ran_or_many():
    quiet = {"Standard": [100, 102], "a": [150, 151], "b": [120, 121], "c": [119]}
    assert clearly_fastest(quiet, [*quiet]) == "a"
    assert clearly_fastest({**quiet, "a": [150]}, [*quiet]) is None, "it ran once, and may have been lucky"
    assert clearly_fastest({**quiet, "b": [140, 170]}, [*quiet]) is None
