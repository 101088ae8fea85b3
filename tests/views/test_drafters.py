from __future__ import annotations

import dataclasses
from itertools import zip_longest

import numpy as np
import pytest

from playground import metrics
from playground.experiments.compare import passes_alone
from playground.lane import Lane
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


def again(run, seconds: float):
    """The run with rounds of so many seconds."""
    return dataclasses.replace(
        run,
        rounds=tuple(
            dataclasses.replace(it, start_s=seconds * i, draft_s=0.0, verify_s=seconds, end_s=seconds * (i + 1))
            for i, it in enumerate(run.rounds)
        ),
    )


def test_of_several_passes_the_median_one_is_shown_and_all_make_speed_up_and_interval():
    passes = [(again(PLAIN, 0.1 * s), again(FAST, 0.1)) for s in (1, 3, 2)]
    comparison = Comparison(passes[0], repeats=tuple(passes[1:]))
    assert metrics.shown(comparison) == Comparison(passes[2])
    found = metrics.measured(comparison, "Fast")
    assert (found.base, found.ours, found.shown, found.runs) == (*passes[2], 2, 3)
    assert found.speedup == pytest.approx((2 * 6 * 4) ** (1 / 3)), "the geometric mean"
    low, high = found.interval
    assert low * high == pytest.approx(found.speedup**2), "the middle of the interval is the speed-up"
    assert found.equation.speedup == found.speedup and found.whole_run_ratio == pytest.approx(4)


@pytest.mark.parametrize("schedule", ["alone", "by turns"])
def test_a_lane_is_compared_with_the_baseline_of_the_passes_in_which_it_ran(schedule):
    """The machine is three times as fast in the second pass, which the lane does not run in. A lane of few rounds by
    turns has no moments to compare, and is no exception."""
    turned = lambda *traces: tuple(dataclasses.replace(it, schedule=schedule) for it in traces)  # noqa: E731
    plain = trace([plain_round(i, start_s=0.1 * i) for i in range(40)])
    short = trace(
        [drafted_round([*range(13 * i, 13 * i + 12)], accepted=12, own=12) for i in range(3)], "suffix", "Few"
    )
    long = trace([plain_round(i) for i in range(40)], "mtp", "Long")
    first = turned(again(plain, 0.3), again(short, 1.3), again(long, 0.2))
    second = turned(again(plain, 0.1), again(long, 0.2 / 3))
    comparison = Comparison(first, repeats=(second,))
    few = metrics.measured(comparison, "Few")
    assert few.speedup == pytest.approx(12.0 / 3.9 * 39 / 40) and few.base is first[0]
    assert metrics.measured(comparison, "Long").speedup == pytest.approx(1.5, rel=0.015)


@pytest.mark.parametrize("noise", [0.06, 0.12])
@pytest.mark.parametrize("drafters", [2, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 6, 12))])
def test_of_drafters_that_are_alike_one_is_seldom_called_the_best(drafters, noise):
    """Runs as `experiments.compare.passes_alone` repeats them: the fastest of the first pass run again. All drafters
    are twice as fast as the baseline, which they have to be told from."""
    rng = np.random.default_rng(drafters)
    lanes, draws = [PLAIN, *(dataclasses.replace(FAST, lane=named(i)) for i in range(drafters))], 300
    run = lambda lane: again(lane, 0.1 * rng.lognormal(0, noise))  # noqa: E731
    crowned = 0
    for _ in range(draws):
        first = [run(lane) for lane in lanes]
        ranking = [0, *sorted(range(1, len(lanes)), key=lambda i: first[i].rounds[-1].end_s)]
        repeats = [
            tuple(run(lanes[i]) for i in sorted(ranking[rank] for rank in ranks)) for ranks in passes_alone(drafters)
        ]
        crowned += metrics.leader(Comparison(tuple(first), repeats=tuple(repeats))) is not None
    assert crowned <= 0.05 * draws


def named(number: int) -> Lane:
    return dataclasses.replace(FAST.lane, name=f"drafter {number}")


def test_a_lead_beyond_the_noise_is_told_whether_one_drafter_ran_or_many():
    def led(**speeds: list[float]) -> str | None:
        passes = zip_longest(*([again(lane_of(name), 1 / it) for it in runs] for name, runs in speeds.items()))
        first, *repeats = (tuple(filter(None, each)) for each in passes)
        return metrics.leader(Comparison(first, repeats=tuple(repeats)))

    def lane_of(name: str):
        return (
            PLAIN if name == "Standard" else dataclasses.replace(PLAIN, lane=dataclasses.replace(FAST.lane, name=name))
        )

    quiet = {"Standard": [100, 102], "a": [150, 151], "b": [120, 121], "c": [119]}
    assert led(**quiet) == "a"
    assert led(**{**quiet, "a": [150]}) is None, "it ran once, and may have been lucky"
    assert led(**{**quiet, "b": [140, 170]}) is None
