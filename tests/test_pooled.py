"""The interval of a pooled speed-up: against scipy where the case is simple, and by how often it holds the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from playground.metrics import Timed, pooled
from playground.metrics.pooled import uncertain, unpaired

SUITES = 4000
HELD = (93.5, 96.5)  # % of suites whose 95 % interval has the truth in it


def lanes(base_s: np.ndarray, seconds: np.ndarray, tokens: np.ndarray) -> tuple[list[Timed], list[Timed]]:
    """Both lanes, of the same tokens: arrays of (prompts, runs)."""
    made = [
        [Timed(tuple(n), tuple(s)) for n, s in zip(tokens.tolist(), lane.tolist(), strict=True)]
        for lane in (base_s, seconds)
    ]
    return made[0], made[1]


def test_it_is_students_interval_of_what_the_prompts_deviate():
    rng = np.random.default_rng(0)
    base_s, seconds = np.ones((12, 1)), rng.normal(0.5, 0.002, (12, 1))
    found = pooled(*lanes(base_s, seconds, np.full((12, 1), 10)))
    logs = np.log(base_s / seconds)[:, 0]
    expected = stats.ttest_1samp(logs, 0).confidence_interval()
    assert found.over == "prompts"
    assert np.log(found.interval) == pytest.approx([expected.low, expected.high], abs=1e-4)


def test_few_prompts_have_one_over_their_runs_with_the_noise_of_all():
    rng = np.random.default_rng(0)
    base_s, seconds = np.ones((2, 3)), np.array([[0.5], [0.25]]) * rng.normal(1, 0.001, (2, 3))
    found = pooled(*lanes(base_s, seconds, np.full((2, 3), 10)))
    noise = np.log(seconds).var(axis=1, ddof=1).mean()
    share = seconds.sum(1) / seconds.sum()
    margin = stats.t.ppf(0.975, 4) * math.sqrt(noise * (share**2).sum() / 3)
    assert found.over == "runs"
    assert math.log(found.interval[1] / found.speedup) == pytest.approx(margin, rel=0.3)
    assert pooled(*lanes(base_s[:, :1], seconds[:, :1], np.full((2, 1), 10))).interval is None


def test_a_long_prompt_that_decides_leaves_few_degrees_of_freedom():
    rng = np.random.default_rng(0)
    noise = rng.normal(1, 0.1, (8, 1))

    def width(longest: int) -> float:
        tokens = np.array([[10]] * 7 + [[longest]])
        low, high = pooled(*lanes(tokens / 1.0, tokens / noise, tokens)).interval
        return math.log(high / low)

    assert width(40) > 2 * width(10)


def test_one_of_many_comparisons_takes_a_wider_interval():
    rng = np.random.default_rng(0)
    made = lanes(np.ones((8, 1)), rng.normal(0.5, 0.02, (8, 1)), np.full((8, 1), 10))
    alone, among = pooled(*made).interval, pooled(*made, comparisons=6).interval
    ratio = math.log(among[1] / among[0]) / math.log(alone[1] / alone[0])
    assert ratio == pytest.approx(stats.t.ppf(1 - 0.025 / 6, 7) / stats.t.ppf(0.975, 7), rel=1e-3)


@pytest.mark.parametrize("n", [8, 20])
def test_other_answers_in_each_lane_have_an_interval_that_holds_the_truth_as_often_as_it_says(n):
    """Lanes whose answers have nothing in common: lognormal times a token, of unlike lengths."""
    rng = np.random.default_rng(n)
    hits, rounds = 0, 2000
    for _ in range(rounds):
        sides = []
        for spread in (0.1, 0.3):
            tokens = rng.choice([16, 48], n)
            seconds = tokens * rng.lognormal(-(spread**2) / 2, spread, n)
            sides.append((seconds.sum() / tokens.sum(), uncertain([*zip(tokens, seconds, strict=True)])))
        (base, of_base), (ours, of_ours) = sides
        low, high = unpaired(base / ours, of_base, of_ours)
        hits += low <= 1 <= high
    assert 0.925 <= hits / rounds <= 0.98
    assert uncertain([(4, 1.0)] * 7) is None and unpaired(1.0, None, of_ours) is None


PROMPTS = [
    (n, spread, lengths)
    for n in (8, 12, 24, 48)
    for spread, lengths in (
        (0.1, (64,)),
        (0.25, (32, 128)),
        (0.5, (64,)),
        (0.5, (64, 128)),
        (0.5, (32, 128)),
        (0.25, (16, 512)),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "spread", "lengths"), PROMPTS)
def test_over_prompts_it_holds_the_truth_as_often_as_it_says(n, spread, lengths):
    """`spread`: of the logarithm of the prompts' speed-ups. The truth: that of all prompts of the kind."""
    rng = np.random.default_rng(n)
    truth = math.exp(-(spread**2) / 2)  # 1 ÷ the mean of lognormal times
    tokens = np.resize(lengths, (n, 1))
    hits = 0
    for _ in range(SUITES):
        base_s = tokens * rng.lognormal(0, 0.05, (n, 1))
        seconds = base_s * rng.lognormal(0, spread, (n, 1)) * rng.lognormal(0, 0.03, (n, 1))
        found = pooled(*lanes(base_s, seconds, tokens))
        assert found.over == "prompts"
        hits += found.interval[0] <= truth * math.exp(-(0.03**2) / 2) <= found.interval[1]
    assert HELD[0] <= 100 * hits / SUITES <= HELD[1]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(64,), (32, 128)])
@pytest.mark.parametrize("spread", [0.1, 0.5])
@pytest.mark.parametrize(("prompts", "runs"), [(1, 3), (4, 2), (5, 2), (5, 3), (5, 5), (7, 2)])
def test_over_runs_it_holds_the_truth_as_often_as_it_says(prompts, runs, spread, lengths):
    """The truth: what the same prompts give on average over endless runs. Half the noise is common to both lanes."""
    rng = np.random.default_rng(prompts * runs)
    tokens = np.repeat(np.resize(lengths, (prompts, 1)), runs, axis=1)
    slow = np.exp(spread * stats.norm.ppf((np.arange(prompts) + 0.5) / prompts))[:, None]
    truth = tokens.sum() / (tokens * slow).sum()
    hits = 0
    for _ in range(SUITES):
        common = rng.lognormal(0, 0.05, tokens.shape)
        base_s, seconds = (
            time * common * rng.lognormal(0, 0.05, tokens.shape) for time in (tokens * 1.0, tokens * slow)
        )
        found = pooled(*lanes(base_s, seconds, tokens))
        assert found.over == "runs"
        hits += found.interval[0] <= truth <= found.interval[1]
    assert HELD[0] <= 100 * hits / SUITES <= HELD[1]
