"""Every figure against rounds that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playground import metrics
from playground.metrics import PositionAcceptance
from playground.metrics.drafts import Ranks
from playground.metrics.lane import inter_token_latencies
from tests.examples import drafted_round, plain_round, trace, tree_round

# 2 of 3 accepted, a correction | all 2 accepted, a bonus | plain | first of 3 rejected
ROUNDS = (
    drafted_round([1, 2, 9], accepted=2, own=3, start_s=0.0, draft_s=0.1, verify_s=0.4),
    drafted_round([4, 5], accepted=2, own=6, start_s=0.6, draft_s=0.1, verify_s=0.3),
    plain_round(7, start_s=1.0, verify_s=0.2),
    drafted_round([9, 9, 9], accepted=0, own=8, start_s=1.5, draft_s=0.1, verify_s=0.4),
)


def test_the_figures_of_a_lane():
    m = metrics.measure_rounds(ROUNDS)
    assert (m.tokens, m.target_passes, m.passes_saved) == (8, 4, 4)
    assert (m.drafted, m.accepted) == (8, 4)
    assert m.acceptance_rate == pytest.approx(4 / 8)
    assert m.mean_accepted_length == pytest.approx(8 / 4)
    assert (m.ttft_s, m.total_s) == (pytest.approx(0.5), pytest.approx(2.0))
    assert m.tokens_per_s == pytest.approx(8 / 2.0)
    assert (m.draft_s, m.verify_s) == (pytest.approx(0.3), pytest.approx(1.3))


def test_a_lane_that_drafted_nothing_has_no_acceptance_rate():
    m = metrics.measure_rounds((plain_round(1), plain_round(2)))
    assert m.acceptance_rate is None
    assert m.mean_accepted_length == 1


def test_a_lane_without_rounds_has_no_speed():
    m = metrics.measure_rounds(())
    assert m.ttft_s is None and m.tokens_per_s is None and m.mean_accepted_length is None


def test_acceptance_by_position_tells_reached_from_drafted():
    assert metrics.acceptance_by_position(ROUNDS) == [
        PositionAcceptance(position=1, drafted=3, reached=3, accepted=2),
        PositionAcceptance(position=2, drafted=3, reached=2, accepted=2),
        PositionAcceptance(position=3, drafted=2, reached=1, accepted=0),
    ]


def test_the_tokens_of_a_tree_that_stand_equally_deep_share_a_place():
    assert metrics.acceptance_by_position([tree_round()]) == [
        PositionAcceptance(position=1, drafted=1, reached=1, accepted=1),
        PositionAcceptance(position=2, drafted=1, reached=1, accepted=0),
    ]


def test_tokens_of_one_round_arrive_together():
    assert inter_token_latencies(ROUNDS) == pytest.approx([0, 0, 0.5, 0, 0, 0.2, 0.8])


def test_gaps_are_percentiles_of_the_times_between_tokens_and_say_of_how_many():
    # 0, 0, 0.5, 0, 0, 0.2, 0.8: linear between the two nearest
    gaps = metrics.gaps(ROUNDS)
    assert (gaps.n, gaps.together) == (7, 4)
    assert (gaps.p50_s, gaps.p95_s, gaps.p99_s) == pytest.approx((0.0, 0.71, 0.782))
    assert metrics.gaps((plain_round(1),)) is None


def test_the_median_plain_pass_leaves_out_the_prefill_and_rounds_with_a_draft():
    rounds = [plain_round(1, verify_s=9), *(plain_round(2, verify_s=s) for s in (0.1, 0.3, 0.2))]
    assert metrics.plain_pass_s([*rounds, ROUNDS[0]]) == pytest.approx(0.2)
    assert metrics.plain_pass_s(ROUNDS[:2]) is None


def test_lanes_with_the_same_tokens_are_identical_however_they_came():
    standard = trace([plain_round(id_, start_s=i, verify_s=1.0) for i, id_ in enumerate([1, 2, 3, 4, 5, 6, 7, 8])])
    other = trace(ROUNDS, drafter="ngram")
    assert metrics.first_difference(standard, other) is None
    assert metrics.whole_run_ratio(standard, other) == pytest.approx((8 / 2.0) / (8 / 8.0))


def test_the_first_difference_names_place_tokens_and_the_baselines_margin():
    standard = trace([plain_round(1), plain_round(2, margin=0.25), plain_round(3)])
    other = trace([plain_round(1), plain_round(5)])
    assert metrics.first_difference(standard, other) == metrics.FirstDifference(1, (2, 5), 0.25)


def test_an_output_that_ends_early_differs_where_it_ends():
    long, short = trace([plain_round(1), plain_round(2)]), trace([plain_round(1)])
    assert metrics.first_difference(long, short) == metrics.FirstDifference(1, (2, None), 0.5)
    assert metrics.first_difference(short, long) == metrics.FirstDifference(1, (None, 2), None)


def test_unsteadiness_compares_slow_passes_with_quick_ones_and_leaves_the_prefill_out():
    rounds = [plain_round(1, verify_s=9.0), *(plain_round(1, verify_s=0.1) for _ in range(20))]
    quiet, short = trace(rounds), trace(rounds[:5])
    busy = trace([*rounds, *(plain_round(1, verify_s=0.5) for _ in range(10))])
    assert metrics.unsteadiness(quiet) == pytest.approx(1)
    assert metrics.unsteadiness(busy) == pytest.approx(5)
    assert metrics.unsteadiness(short) is None
    assert metrics.unsteady([quiet, busy]) and not metrics.unsteady([quiet, short])


def test_passes_over_more_tokens_are_not_unsteady_for_taking_longer():
    rounds = [plain_round(0, start_s=0, verify_s=1.0)]
    for i in range(10):
        rounds.append(plain_round(i, start_s=i, verify_s=0.04))
        rounds.append(drafted_round([1, 2, 3], accepted=0, own=4, start_s=i, verify_s=0.17))
    assert metrics.unsteadiness(trace(rounds)) == pytest.approx(1)


def test_a_lane_that_was_stopped_compares_as_far_as_it_goes():
    standard = trace([plain_round(i, start_s=0.1 * i) for i in range(12)])
    assisted = trace([drafted_round([1, 2], accepted=2, own=3, start_s=0.0)], drafter="ngram")
    stopped = replace(assisted, finish="stopped")
    assert [len(rounds) for rounds in metrics.compared_rounds(standard, assisted)] == [12, 1]
    assert [len(rounds) for rounds in metrics.compared_rounds(standard, stopped)] == [3, 1]
    took = [rounds[-1].end_s for rounds in metrics.compared_rounds(standard, stopped)]
    assert metrics.whole_run_ratio(standard, stopped) == pytest.approx(took[0] / took[1])
    unbegun = replace(stopped, rounds=())
    assert metrics.whole_run_ratio(standard, unbegun) is None


def test_ranks_tell_whether_a_wider_draft_would_have_held_the_targets_choice():
    rounds = [drafted_round([1, 2], accepted=1, own=9) for _ in range(6)]
    given = [1, 2, 8, 9, 0, None]
    ranked = [replace(r, target=replace(r.target, rank=rank)) for r, rank in zip(rounds, given, strict=True)]
    assert metrics.ranks(ranked) == Ranks(rejections=5, best=1, second=1, third_to_eighth=1, further=1, never=1)


def test_a_speedup_is_tokens_per_pass_over_the_cost_of_a_round_and_its_parts_add_up():
    standard = trace([plain_round(i, start_s=0.1 * i, verify_s=0.1) for i in range(8)])
    equation = metrics.equation(standard, trace(ROUNDS))
    assert equation.tokens_per_pass == pytest.approx(8 / 4)
    assert equation.cost == pytest.approx((1.9 / 4) / 0.1), "its first pass took 0.1 s more than the others"
    assert equation.tokens_per_pass / equation.cost * equation.prefill == pytest.approx(equation.speedup)
    assert equation.speedup == pytest.approx(metrics.whole_run_ratio(standard, trace(ROUNDS)))
    assert equation.verify + equation.draft + equation.other == pytest.approx(equation.cost)
    untimed = replace(ROUNDS[0], draft_s=None)
    assert metrics.equation(standard, trace([untimed, *ROUNDS[1:]])).verify is None
    assert metrics.equation(standard, trace([])) is metrics.equation(standard, trace(ROUNDS[:1])) is None


def test_a_short_answer_after_a_long_prompt_has_the_prefill_as_a_term_of_its_own():
    """Ten seconds of prefill in both lanes; then passes of 0.1 s, of which the drafter saves half."""
    standard = [plain_round(0, verify_s=10.0), *(plain_round(i, start_s=9.9 + i / 10) for i in range(1, 10))]
    quick = [replace(drafted_round([0], accepted=1, own=1, draft_s=0.0), verify_s=10.0, end_s=10.0)]
    quick += [drafted_round([0], accepted=1, own=1, start_s=10 + i / 10, draft_s=0.0) for i in range(4)]
    found = metrics.equation(trace(standard), trace(quick))
    assert (found.tokens_per_pass, found.cost, found.verify) == pytest.approx((2, 1, 1))
    assert found.speedup == pytest.approx(10.9 / 10.4)
    assert found.speedup == pytest.approx(found.tokens_per_pass / found.cost * found.prefill)
    assert found.other == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("margin", "dtype", "tie"), [
    (0.02, "bfloat16", True), (1.2, "int8 weights, bfloat16", True), (1.2, "int4 weights, bfloat16", False),
    (0.02, "float32", False), (0.0, "float64", True),
])  # fmt: skip
def test_what_rounding_can_turn_depends_on_the_number_format(margin, dtype, tie):
    assert metrics.near_tie(margin, dtype) == tie
