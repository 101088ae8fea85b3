"""The speed-up of lanes that took turns, on simulated machines: the interval covers the truth, luck crowns nobody."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from playground import metrics
from playground.backends.local import NATIVE_TURN, TURN
from playground.experiments.race import SECONDS
from playground.metrics.measured import paired_interval
from playground.metrics.paired import paired
from playground.trace import Comparison, Trace
from tests.examples import drafted_round, plain_round, trace

TOKENS = 128
PLAIN = [(0, 1)] * TOKENS
PREFILL_S = 0.03
LANE_NOISE = 0.01  # of the whole run of a lane, beyond that of its rounds


def speculative(rng) -> list[tuple[int, int]]:
    """Drafted tokens and tokens of each round; half of the drafts are right, and lookahead varies."""
    rounds, left = [], TOKENS
    while left:
        drafted = int(rng.choice([0, 3, 5, 5, 5]))
        tokens = min(left, 1 + int(rng.binomial(drafted, 0.5)))
        rounds.append((drafted, tokens))
        left -= tokens
    return rounds


def costs(rounds) -> list[float]:
    """The seconds of each round on a quiet machine: more for each drafted token, and for a longer text."""
    before = np.cumsum([0, *(tokens for _, tokens in rounds)])
    own = [
        0.01 * (1 + 0.15 * drafted) * (1 + 0.05 * at / TOKENS) for (drafted, _), at in zip(rounds, before, strict=False)
    ]
    return [own[0] + PREFILL_S, *own[1:]]


def truth(base, ours) -> float:
    return sum(costs(base)) / sum(costs(ours))


def quiet(rng):
    return lambda at: (1.0, 0.03)


def noisy(rng):
    return lambda at: (1.0, 0.12)


def drifting(rng):
    most = rng.uniform(-0.3, 0.5)
    return lambda at: (1 + most * min(at, 4) / 4, 0.05)


def stepping(rng):
    begin, factor = rng.uniform(0, 2), rng.uniform(1.3, 2.5)
    return lambda at: (factor if at > begin else 1.0, 0.05)


def bursting(rng):
    """A neighbour takes a core in bursts of about 1.5 seconds."""
    edges, on = np.cumsum(rng.exponential(1.5, 40)), rng.random() < 0.5
    factors = rng.uniform(1.4, 3.5, 41)

    def machine(at):
        i = int(np.searchsorted(edges, at))
        return (factors[i], 0.35) if (i % 2 == 0) == on else (1.0, 0.03)

    return machine


def race(lanes, machine, rng, wall=0.0, turn=NATIVE_TURN, first=0, seconds=None) -> list[Trace]:
    """The traces of lanes that take turns on a machine: `machine(second)` is its slowness and the noise of a round.
    `wall`: the second at which they begin. `turn`: the most rounds of a turn. `first`: the number of the first lane,
    of which 0 is the baseline. `seconds`: of each lane's rounds, instead of those of such a machine."""
    clocks, done = [0.0] * len(lanes), [[] for _ in lanes]
    if seconds is None:
        seconds = [np.array(costs(rounds)) * rng.lognormal(0, LANE_NOISE) for rounds in lanes]
    while left := [i for i, rounds in enumerate(lanes) if len(done[i]) < len(rounds)]:
        i = min(left, key=lambda i: clocks[i])
        ends, begun = clocks[i] + SECONDS, len(done[i])
        for (drafted, tokens), second in islice(zip(lanes[i], seconds[i], strict=True), begun, begun + turn):
            slow, noise = machine(wall) if machine else (1.0, 0.0)
            at, took = clocks[i], second * slow * rng.lognormal(0, noise)
            done[i].append(_round(drafted, tokens, at, at + took))
            clocks[i], wall = at + took, wall + took
            if clocks[i] >= ends:
                break
    return [
        replace(trace(rounds, "ngram" if i else "none", name=f"lane {i}" if i else "Standard"), schedule="by turns")
        for i, rounds in enumerate(done, first)
    ]


def _round(drafted: int, tokens: int, start_s: float, end_s: float):
    whole = drafted_round([*range(drafted + 1)], accepted=tokens - 1, own=7) if drafted else plain_round(7)
    times = dict(start_s=start_s, end_s=end_s, draft_s=0.0, verify_s=end_s - start_s, commit_s=0.0)
    return replace(whole, drafted=whole.drafted[:drafted], **times)


@pytest.mark.parametrize("turn", [NATIVE_TURN, TURN])
@pytest.mark.parametrize("machine", [quiet, noisy, drifting, stepping, bursting])
def test_the_interval_of_one_run_covers_the_truth(machine, turn):
    rng, draws = np.random.default_rng(1), 80
    covered, widths, off = 0, [], []
    for _ in range(draws):
        lanes = [PLAIN, speculative(rng)]
        found, true = paired(*race(lanes, machine(rng), rng, turn=turn)), truth(*lanes)
        low, high = paired_interval([found])
        covered += low <= true <= high
        widths.append(math.log(high / low))
        off.append(found.log - math.log(true))
    assert covered >= 0.93 * draws - 2 * math.sqrt(0.93 * 0.07 * draws)
    # The lane with the longer turns is more often ahead when the machine changes.
    most = {bursting: 0.02, stepping: 0.015}.get(machine, 0.01)
    assert abs(np.median(off)) < most + 2 * 1.25 * np.std(off) / math.sqrt(draws)
    in_bursts = 0.3 if turn == NATIVE_TURN else 0.36  # a burst meets the turn of one lane more often
    assert np.median(widths) < {quiet: 0.12, bursting: in_bursts}.get(machine, 0.2)


STALLS = [(0.2, 0.15), (0.2, 0.05), (0.5, 0.02), (0.05, 0.3)]  # share of the rounds, mean seconds


def stalled(rng, share, mean_s):
    """The traces of two equal lanes of 200 rounds of 20 ms, in which a share of the rounds stalls; and those of the
    same stalls with the lanes exchanged."""
    stalls = rng.exponential(mean_s, (2, 200)) * (rng.random((2, 200)) < share)
    base_s = 0.02 * rng.lognormal(0, 0.03, (2, 200)) + stalls
    return [race([[(0, 1)] * 200] * 2, None, rng, seconds=seconds) for seconds in (base_s, base_s[::-1])]


@pytest.mark.parametrize(("share", "mean_s"), STALLS)
def test_equal_lanes_give_one_whatever_stalls(share, mean_s):
    """Each draw with its exchange, so that the luck of the stalls cancels out and a preference for a lane is left."""
    rng, logs = np.random.default_rng(7), []
    for _ in range(60):
        found, exchanged = (paired(*lanes).log for lanes in stalled(rng, share, mean_s))
        logs.append((found + exchanged) / 2)
    assert abs(np.mean(logs)) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("share", "mean_s"), STALLS)
def test_intervals_of_equal_lanes_hold_one_as_often_as_they_say(share, mean_s):
    rng, held = np.random.default_rng(8), []
    for _ in range(300):
        for lanes in stalled(rng, share, mean_s):
            low, high = paired_interval([paired(*lanes)])
            held.append(low <= 1 <= high)
    assert 0.93 <= np.mean(held) <= 0.985


@pytest.mark.parametrize("machine", [quiet, bursting])
def test_lanes_exchanged_give_the_inverse(machine):
    rng = np.random.default_rng(9)
    for _ in range(5):
        base, ours = race([PLAIN, speculative(rng)], machine(rng), rng)
        there, back = paired(base, ours), paired(ours, base)
        assert there.log == pytest.approx(-back.log, abs=1e-12) and there.cost == pytest.approx(1 / back.cost)
        assert (there.error, there.freedom) == (pytest.approx(back.error), back.freedom)


def test_what_a_drafter_does_once_counts():
    """A drafter that reads the prompt before its first draft takes that time, though it does so in one round."""
    rng = np.random.default_rng(10)
    seconds = [np.full(100, 0.02), np.full(100, 0.01)]
    seconds[1][1] += 0.2
    found = paired(*race([[(0, 1)] * 100] * 2, None, rng, seconds=seconds))
    assert math.exp(found.log) == pytest.approx(2.0 / 1.2, rel=0.005)


def test_in_bursts_one_run_by_turns_says_more_than_three_of_each_lane_alone():
    rng, draws = np.random.default_rng(2), 30
    narrower = []
    for _ in range(draws):
        lanes, machine, wall = [PLAIN, speculative(rng)], bursting(rng), 0.0
        low, high = paired_interval([paired(*race(lanes, machine, rng))])
        runs = []
        for _ in range(3):
            for lane in lanes:
                runs += race([lane], machine, rng, wall, first=len(runs) % 2)
                wall += runs[-1].rounds[-1].end_s
        passes = [tuple(replace(it, schedule="alone") for it in runs[i : i + 2]) for i in (0, 2, 4)]
        lowest, highest = metrics.measured(Comparison(passes[0], repeats=(*passes[1:],)), "lane 1").interval
        narrower.append(math.log(high / low) / math.log(highest / lowest))
    assert np.median(narrower) < 0.5


@pytest.mark.parametrize("drafters", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 12))])
def test_of_drafters_that_are_alike_one_is_seldom_called_the_best(drafters):
    rng, draws, crowned = np.random.default_rng(drafters), 60, 0
    for _ in range(draws):
        machine = noisy(rng) if rng.random() < 0.5 else bursting(rng)
        lanes = [PLAIN, *[speculative(rng)] * drafters]
        crowned += metrics.leader(Comparison(tuple(race(lanes, machine, rng)))) is not None
    assert crowned <= 0.05 * draws


def test_a_lane_that_is_faster_is_found_in_one_run_and_the_terms_multiply_to_its_speed_up():
    rng = np.random.default_rng(3)
    base, ours, slower = race([PLAIN, speculative(rng), PLAIN], quiet(rng), rng)
    comparison = Comparison((base, ours, replace(slower, lane=replace(slower.lane, drafter="none"))))
    assert metrics.leader(comparison) == ours.lane.name and metrics.sure(comparison)
    found = metrics.measured(comparison, ours.lane.name)
    assert found.outcome == "faster" and found.runs == 1
    terms = found.equation
    assert terms.speedup == found.speedup == pytest.approx(terms.tokens_per_pass / terms.cost * terms.prefill)
    assert terms.cost == pytest.approx(terms.verify + terms.draft + terms.other)
    alone = Comparison(tuple(replace(it, schedule="alone") for it in comparison.lanes))
    assert metrics.measured(alone, ours.lane.name).interval is None


@pytest.mark.parametrize("machine", [quiet, noisy, bursting])
def test_the_prefill_of_lanes_that_took_turns_explains_no_more_than_it_can(machine):
    """It is the same pass in both, so its factor lies between 1 and the inverse of the speed-up without it. By turns
    what a busy machine does is never called the prefill's."""
    rng = np.random.default_rng(11)
    for rounds in (1, 2) * 10:
        few = [PLAIN[: 40 // rounds], speculative(rng)[: 16 // rounds]]  # enough for moments to compare, or too few
        found = metrics.measured(Comparison(tuple(race(few, machine(rng), rng))), "lane 1")
        terms = found.equation
        without = terms.tokens_per_pass / terms.cost
        assert (found.interval is not None) == (rounds == 1)
        assert min(1, 1 / without) * 0.9 <= terms.prefill <= max(1, 1 / without) * 1.1
        assert terms.speedup == found.speedup == pytest.approx(without * terms.prefill)


def test_too_few_rounds_are_no_moments_to_compare():
    rng = np.random.default_rng(4)
    short = race([PLAIN[:8], PLAIN[:8]], quiet(rng), rng)
    assert paired(*short) is None
    assert metrics.measured(Comparison(tuple(short)), "lane 1").interval is None


@pytest.mark.parametrize(("schedule", "outcome"), [("by turns", "unclear"), ("alone", "faster")])
def test_a_race_stopped_after_a_few_rounds_has_no_winner(schedule, outcome):
    """Of lanes that ran alone, the usual noise of a run is known."""
    few = [plain_round(i, start_s=0.1 * i) for i in range(3)]
    quicker = [plain_round(i, start_s=0.05 * i, verify_s=0.05) for i in range(3)]
    lanes = trace(few, name="Standard"), trace(quicker, name="Again")
    lanes = tuple(replace(lane, schedule=schedule, finish="stopped") for lane in lanes)
    ours = metrics.measured(Comparison(lanes), "Again")
    assert ours.speedup and ours.outcome == outcome


@pytest.mark.parametrize("wrong", ["no time", "backwards", "apart", "far", "no tokens"])
def test_a_file_whose_rounds_cannot_be_is_no_error(wrong):
    rng = np.random.default_rng(5)
    base, ours = race([PLAIN, PLAIN], quiet(rng), rng)
    changed = {
        "no time": lambda i, it: replace(it, start_s=1.0, end_s=1.0),
        "backwards": lambda i, it: replace(it, start_s=5 - it.start_s, end_s=5.1 - it.start_s),
        "apart": lambda i, it: replace(it, start_s=it.start_s + 1e6, end_s=it.end_s + 1e6),
        "far": lambda i, it: (
            replace(it, start_s=1e-9 * i, end_s=1e-9 * (i + 1))
            if i < 120
            else replace(it, start_s=1e14 * i, end_s=1e14 * i + 1)
        ),
        "no tokens": lambda i, it: replace(it, target=None),
    }[wrong]
    ours = replace(ours, rounds=tuple(changed(i, it) for i, it in enumerate(ours.rounds)))
    found = metrics.measured(Comparison((base, ours)), ours.lane.name)
    assert found.speedup is None or math.isfinite(found.speedup)
    assert found.interval is None or all(map(math.isfinite, found.interval))
