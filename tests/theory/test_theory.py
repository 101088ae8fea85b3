"""What the formulas say, against simulation and made runs; and what is said about them."""

from __future__ import annotations

import json
import random
import re
import statistics
from dataclasses import replace

import pytest

from playground import export, metrics, theory
from playground.commands import main
from playground.presets import SHIPPED
from playground.theory import formulas, queueing
from playground.theory.formulas import pass_seconds
from playground.theory.lookahead import CANDIDATES, asynchronous
from playground.trace import Comparison, Experts, Memory, PassTime, Round, Trace
from playground.views import charts, headline, why
from tests.examples import ENVIRONMENT, drafted_round, plain_round, trace

# Made passes all take the same time, on which scipy's Welch test remarks.
pytestmark = pytest.mark.filterwarnings("ignore:Precision loss occurred")

PASS_S, VERIFY_S, DRAFT_S, REST_S = 0.1, 0.12, 0.01, 0.005  # of a run; draft_s a token


def standard(tokens: int = 200) -> Trace:
    return trace([plain_round(i, start_s=PASS_S * i) for i in range(tokens)])


def assisted(alpha: float, gamma: int, rounds: int = 400, *, idle: int = 0) -> Trace:
    """A run whose draft tokens are accepted with probability alpha; every `idle`-th round drafts nothing."""
    rng, made, now = random.Random(0), [plain_round(0)], PASS_S
    for i in range(rounds):
        if idle and i % idle == 0:
            made.append(plain_round(1, start_s=now))
        else:
            accepted = next((n for n in range(gamma) if rng.random() >= alpha), gamma)
            spent = {"draft_s": gamma * DRAFT_S, "verify_s": VERIFY_S}
            made.append(drafted_round(range(2, 2 + gamma), accepted=accepted, own=1, start_s=now, **spent))
        now = made[-1].end_s + REST_S
    return replace(trace(made, drafter="mtp"), lane=replace(trace(made, drafter="mtp").lane, lookahead=gamma))


def attribute(baseline: Trace, other: Trace) -> theory.Attribution:
    return theory.attribute(metrics.measured(Comparison((baseline, other)), other.lane.name))


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 3), (0.5, 1), (0.8, 5), (1.0, 4)])
def test_expected_tokens_are_those_of_a_simulation(alpha, gamma):
    rng = random.Random(1)
    rounds = [next((n for n in range(gamma) if rng.random() >= alpha), gamma) + 1 for _ in range(20_000)]
    assert formulas.expected_tokens([alpha] * gamma) == pytest.approx(statistics.fmean(rounds), rel=0.02)


def test_a_speedup_is_tokens_over_cost():
    assert formulas.speedup(3.0, 4, 0.1) == pytest.approx(3.0 / 1.4)


@pytest.mark.parametrize("idle", [0, 3])
def test_the_steps_of_an_attribution_are_the_terms_of_the_headline(idle):
    baseline, other = standard(), assisted(0.7, 3, idle=idle)
    found, shown = attribute(baseline, other), metrics.equation(baseline, other)
    steps = dict(found.steps)
    assert found.equation == shown and steps["prefill"] == pytest.approx(metrics.whole_run_ratio(baseline, other))
    assert steps["tokens per check"] == shown.tokens_per_pass, "the breakdown begins where the headline does"
    assert steps["rest"] == pytest.approx(shown.tokens_per_pass / shown.cost)
    assert found.idle == pytest.approx(1 / 3 if idle else 0, abs=0.01)
    assert found.drafting > shown.tokens_per_pass, "the prefill drafted nothing"
    drafting = 1 - found.idle
    wider = drafting * (VERIFY_S - PASS_S) / PASS_S
    assert shown.verify == pytest.approx(1 + wider, abs=0.01)
    assert found.wider[0] > 0 and statistics.fmean(found.wider) == pytest.approx(wider, abs=0.01)
    assert shown.draft == pytest.approx(drafting * 3 * DRAFT_S / PASS_S, abs=0.001)
    assert shown.other == pytest.approx(REST_S / PASS_S, rel=0.05)


def test_a_long_prefill_weighs_more_in_a_lane_of_few_rounds():
    def after_a_long_prompt(lane: Trace, seconds: float) -> Trace:
        first, *later = lane.rounds
        longer = replace(first, verify_s=first.verify_s + seconds, end_s=first.end_s + seconds)
        moved = [replace(it, start_s=it.start_s + seconds, end_s=it.end_s + seconds) for it in later]
        return replace(lane, rounds=(longer, *moved))

    lanes = standard(), assisted(0.7, 3, rounds=80)
    short, long = (metrics.equation(*(after_a_long_prompt(lane, seconds) for lane in lanes)) for seconds in (0.0, 10.0))
    assert short.prefill == pytest.approx(1, abs=0.01) and long.prefill < 0.9
    assert long.speedup < short.speedup
    terms = [(it.tokens_per_pass, it.cost, it.verify, it.draft, it.other) for it in (short, long)]
    assert terms[0] == pytest.approx(terms[1]), "nothing else changes"
    decoding = [theory.decoding(*(after_a_long_prompt(lane, s) for lane in lanes)).speedup for s in (0, 10.0)]
    assert decoding[0] == pytest.approx(decoding[1])


def test_noise_is_not_named_as_a_cause():
    def machine(lane: Trace, speed: float, noise: float = 0.0) -> Trace:
        rng, now, rounds = random.Random(1), 0.0, []
        for it in lane.rounds:
            verify_s = it.verify_s * speed * rng.lognormvariate(0, noise)
            end_s = now + (it.draft_s or 0.0) + verify_s
            rounds.append(replace(it, start_s=now, verify_s=verify_s, end_s=end_s))
            now = end_s
        return replace(lane, rounds=tuple(rounds))

    def said(baseline: Trace, other: Trace) -> str:
        return why.paragraph(metrics.measured(Comparison((baseline, other)), other.lane.name))

    lanes = standard(60), assisted(0.7, 3, rounds=20)
    assert "because it reads several tokens" in said(*lanes)
    quicker = said(lanes[0], machine(lanes[1], 0.6))
    assert "because the machine was faster in this lane" in quicker and "pass is wider," not in quicker
    noisy = said(*(machine(lane, 1.0, 1.0) for lane in lanes))
    assert "within the noise of the timing" in noisy and "costs most is verifying" not in noisy


def test_what_a_server_does_not_report_is_one_cost():
    def unsplit(lane: Trace) -> Trace:
        return replace(lane, rounds=tuple(replace(it, draft_s=None, verify_s=None) for it in lane.rounds))

    baseline, other = standard(), assisted(0.7, 3)
    found = attribute(unsplit(baseline), unsplit(other))
    whole = attribute(baseline, other).equation
    assert found.equation.speedup == whole.speedup and found.equation.cost == pytest.approx(whole.cost, rel=0.02)
    assert [name for name, _ in found.steps] == ["tokens per check", "cost of a check", "prefill"]


def test_a_published_figure_differs_by_factors_whose_product_is_the_ratio():
    found = theory.decoding(standard(), assisted(0.7, 3))
    against = theory.published(found, 2.8, 3.2)
    assert against.acceptance * against.cost == pytest.approx(found.speedup / 2.8)
    assert against.draft_share + against.verify_share + against.other_share == pytest.approx(1)
    assert theory.published(found, 2.8).acceptance is None


def test_what_if_finds_the_acceptance_and_predicts_another_run():
    baseline, five = standard(), assisted(0.7, 5, rounds=2000)
    found = theory.what_if(baseline, five)
    assert found.acceptance == pytest.approx([0.7] * 5, abs=0.05)
    assert found.c == pytest.approx(DRAFT_S / PASS_S)
    assert found.agrees
    two = assisted(0.7, 2, rounds=2000)
    assert found.predictions[2].speedup == pytest.approx(theory.what_if(baseline, two).measured, rel=0.1)
    assert found.predictions[0].speedup == 1
    assert [it.seen for it in found.predictions] == [True] * 6 + [False] * 11


def test_what_if_of_several_runs_is_that_of_one_as_long():
    whole = theory.what_if(standard(), assisted(0.7, 5, rounds=2000))
    runs = [assisted(0.7, 5, rounds=2000).rounds] * 2
    pooled = theory.what_if_of_runs([standard().rounds] * 2, runs, (), 16)
    assert pooled.acceptance == whole.acceptance
    assert [it.speedup for it in pooled.predictions] == pytest.approx([it.speedup for it in whole.predictions])
    assert pooled.measured == pytest.approx(whole.measured)


def test_what_if_reads_the_growth_of_a_pass_from_measured_times():
    times = (PassTime(1, 0.05), PassTime(6, 0.06), PassTime(16, 0.5))
    other = replace(assisted(0.7, 5), environment=replace(ENVIRONMENT, pass_times=times))
    steep = theory.what_if(standard(), other).predictions
    flat = theory.what_if(standard(), assisted(0.7, 5)).predictions
    assert steep[5].speedup == pytest.approx(flat[5].speedup, rel=0.05)
    assert steep[12].speedup < 0.5 * flat[12].speedup


@pytest.mark.parametrize(("alpha", "idle"), [(0.9, 0), (0.7, 3), (0.4, 0), (0.2, 3)])
def test_the_constant_lookahead_is_the_fastest_of_simulated_ones(alpha, idle):
    """By a run whose drafts were as long as any of them, and whose passes grow by a sixth with each token."""
    times = tuple(PassTime(width, PASS_S * (5 + width) / 6) for width in (1, 2, 16))

    def at(gamma: int) -> Trace:
        """A run at another lookahead: each pass takes as long as its width says."""
        rounds, now = [], 0.0
        for it in assisted(alpha, gamma, rounds=2000, idle=idle).rounds:
            verify_s = PASS_S * (6 + len(it.drafted)) / 6
            ends = now + (it.draft_s or 0.0) + verify_s
            rounds.append(replace(it, start_s=now, verify_s=verify_s, end_s=ends))
            now = ends
        made = assisted(alpha, gamma, rounds=1)
        environment = replace(ENVIRONMENT, pass_times=times)
        return replace(made, rounds=tuple(rounds), environment=environment, lane=replace(made.lane, policy="auto"))

    speeds = {gamma: metrics.measure(at(gamma)).tokens_per_s for gamma in range(1, 9)}
    found = theory.constant(standard(), at(8))
    assert found.by_costs and speeds[found.lookahead] > 0.99 * max(speeds.values())


def test_without_enough_drafts_the_constant_lookahead_is_one_more_than_was_accepted():
    few = replace(trace([plain_round(0), drafted_round([1, 2, 3], accepted=2, own=4, start_s=0.1)], "mtp"))
    few = replace(few, lane=replace(few.lane, lookahead=8, policy="auto"))
    assert theory.constant(standard(), few) == (3, False)
    assert theory.constant(standard(), replace(few, rounds=few.rounds[:1])) == (1, False)


def test_there_is_no_what_if_for_trees_or_without_times():
    rounds = [replace(it, verify_s=None) for it in assisted(0.7, 3).rounds]
    assert theory.what_if(standard(), replace(assisted(0.7, 3), rounds=tuple(rounds))) is None
    assert theory.what_if(standard(), trace([plain_round(1)] * 3, drafter="ngram")) is None


def test_a_batch_pays_until_its_verify_passes_become_wide():
    times = tuple(PassTime(tokens, max(1.0, tokens / 32)) for tokens in (1, 8, 32, 64))
    points = formulas.by_batch(times, tokens_per_pass=3.0, lookahead=4, c=0.05)
    assert points[0].speedup == pytest.approx(3.0 / 1.2)
    assert points[-1].verify == pytest.approx(5), "as many times wider, where arithmetic limits the device"
    assert points[-1].speedup < 1
    assert [it.extrapolated for it in points] == [it.batch * 5 > 64 for it in points]
    assert pass_seconds(times)(128) == pytest.approx(4)


def test_under_load_speculation_stops_paying_where_verify_passes_are_dear():
    def service(tokens: list[int], width: int) -> queueing.Service:
        return queueing.Service(lambda batch: max(1.0, batch * width / 16) * 0.01, tokens, 0.01)

    points = queueing.under_load(service([1], 1), service([2, 3], 5), rates=(0.1, 5.0, 20.0), length=50, seeds=3)
    assert [it.pays for it in points] == [True, True, False]
    assert points[0].standard.mean == pytest.approx(0.5, rel=0.1), "alone: fifty rounds of 10 ms"
    assert all(band.low <= band.mean <= band.high for it in points for band in (it.standard, it.assisted, it.ratio))
    at = theory.crossing(points)
    assert 5 < at < 20 and f"about {at:.2g} requests/s" in why.load(points)
    assert theory.crossing(points[:2]) is None and "every rate" in why.load_end(points[:2])
    assert "at none" in why.load_end(points[2:])


@pytest.mark.parametrize(("load", "seeds"), [(0.5, 20), (0.8, 40)])
def test_the_simulation_gives_what_closed_forms_say(load, seeds):
    """Times in units of one answer's alone."""

    def mean(service: queueing.Service, length: int) -> float:
        runs = [queueing.seconds(service, load, length, random.Random(seed)) for seed in range(seeds)]
        return statistics.fmean(map(statistics.fmean, runs))

    prefill_only = queueing.Service(lambda batch: 0.0, [1], prefill_s=1.0, first=1)
    assert mean(prefill_only, 1) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.1), "M/D/1"
    no_limit = queueing.Service(lambda batch: 0.05, [1], prefill_s=0.0, first=0)
    assert mean(no_limit, 20) == pytest.approx(1 + 0.05 / 2, rel=0.02), "as if alone, but for the round that runs"
    arithmetic = queueing.Service(lambda batch: 0.05 * batch, [1], prefill_s=0.0, first=0)
    assert mean(arithmetic, 20) == pytest.approx(1 / (1 - load), rel=0.15), "M/G/1, processor sharing"


def test_the_tokens_of_the_first_round_count_once():
    def alone(length: int, first: int) -> float:
        service = queueing.Service(lambda batch: 1.0, [1], prefill_s=1.0, first=first)
        return queueing.seconds(service, 1e-6, length, random.Random(0))[0]

    assert (alone(10, 1), alone(10, 4), alone(1, 1)) == pytest.approx((10.0, 7.0, 1.0))


def test_what_a_finished_run_predicts_is_drawn_and_unknown_without_measured_passes():
    times = (PassTime(1, 0.1), PassTime(16, 0.2), PassTime(64, 0.8))
    other = replace(assisted(0.7, 3), environment=replace(ENVIRONMENT, pass_times=times))
    points = theory.batches_of(standard(), other)
    drawn = charts.batches(points).data[0]
    assert list(drawn.y) == [it.speedup for it in points] and drawn.marker.symbol[-1] == "circle-open"
    plain, ours = theory.Band(2.0, 1.5, 2.5), theory.Band(1.0, 0.9, 1.1)
    lines = charts.load([theory.LoadPoint(0.1, plain, ours, theory.Band(2.0, 1.8, 2.2))]).data
    assert [(line.name, *line.y) for line in lines] == [("standard", 2.0), ("assisted", 1.0)]
    assert list(lines[0].error_y.array) == [0.5] and lines[1].error_y.arrayminus[0] == pytest.approx(0.1)
    assert theory.batches_of(standard(), assisted(0.7, 3)) == theory.loads_of(standard(), assisted(0.7, 3)) == []


def test_services_agree_with_the_run_at_a_batch_of_one():
    times = (PassTime(1, 0.1), PassTime(16, 0.2), PassTime(64, 0.8))
    other = replace(assisted(0.7, 3), environment=replace(ENVIRONMENT, pass_times=times))
    plain, ours = queueing.services(standard(), other)
    assert plain.round_s(1) == pytest.approx(PASS_S)
    assert ours.round_s(1) == pytest.approx(VERIFY_S + 3 * DRAFT_S + REST_S, rel=0.01)
    assert ours.round_s(16) / plain.round_s(16) > ours.round_s(1) / plain.round_s(1)
    points = queueing.under_load(plain, ours, queueing.rates(plain, 100)[::3], length=100, seeds=2)
    assert points[0].pays
    assert "requests/s" in why.load(points) or "every rate" in why.load(points)


def test_price_and_bandwidth():
    lane = assisted(0.7, 3)
    assert theory.price_of(lane, 3.6) == pytest.approx(1000 / metrics.measure(lane).tokens_per_s)
    assert theory.limit_of(lane) is None and why.limit(lane) == ""
    known = replace(lane, environment=replace(ENVIRONMENT, bandwidth=50e9), memory=Memory(10**9, 0, 10**6, 0))
    limit = theory.limit_of(known)
    assert limit.tokens_per_s == pytest.approx(50 * metrics.measure(lane).mean_accepted_length)
    assert limit.experts is None and "50 GB/s" in why.limit(known)


@pytest.mark.parametrize(
    ("bandwidth", "spread", "caches"),
    [
        (50e9, 1.02, False),  # below the limit
        (4e9, 1.02, False),  # above it by less than a copy can leave uncounted
        (2e9, 1.02, True),
        (2e9, 3.0, False),  # the readings differ by more than that
        (2e9, None, False),  # an older trace: nothing is known of the readings
    ],
)
def test_weights_are_said_to_come_from_caches_only_beyond_what_the_readings_leave_open(bandwidth, spread, caches):
    """Half a gigabyte a pass, ten passes a second."""
    environment = replace(ENVIRONMENT, bandwidth=bandwidth, bandwidth_spread=spread)
    said = why.limit(replace(standard(), environment=environment, memory=Memory(5 * 10**8, 0, 0, 0)))
    assert ("caches" in said) == caches and f"{bandwidth / 1e9:.0f} GB/s" in said


def test_a_pass_reads_the_experts_that_its_tokens_choose():
    rng = random.Random(0)
    for tokens in (1, 5, 33):
        read = [len({e for _ in range(tokens) for e in rng.sample(range(64), 8)}) for _ in range(2000)]
        assert formulas.experts_read(64, 8, tokens) == pytest.approx(statistics.fmean(read), rel=0.02)


def test_the_limit_of_a_mixture_counts_the_experts_that_a_pass_reads():
    """Eight of 64 experts a token; the experts are nine tenths of the weights."""
    memory = Memory(10**9, 0, 0, 0, Experts(count=64, per_token=8, weights=9 * 10**8))
    plain, drafting = (
        replace(lane, environment=replace(ENVIRONMENT, bandwidth=50e9), memory=memory)
        for lane in (standard(50), assisted(0.7, 4, rounds=50))
    )
    assert theory.limit_of(plain).tokens_per_s == pytest.approx(50e9 / (1e8 + 9e8 * 8 / 64))
    wide = theory.limit_of(drafting)
    assert wide.experts == pytest.approx(64 * (1 - (1 - 8 / 64) ** 5))
    read = 1e8 + 9e8 * wide.experts / 64
    assert wide.tokens_per_s == pytest.approx(50e9 / read * metrics.measure(drafting).mean_accepted_length)
    assert re.search(r" 31\.2 .* 64 experts, .* 8\b", why.limit(drafting))
    assert re.search(r" 8\.0 .* 64 experts\.", why.limit(plain))


def test_the_waterfall_and_the_paragraph_say_what_the_attribution_does():
    comparison = Comparison((standard(), assisted(0.7, 3, idle=4)))
    other = comparison.others[0]
    measured = metrics.measured(comparison, other.lane.name)
    found = theory.attribute(measured)
    bars = why.waterfall(measured).data[0]
    assert sum(bars.y[:-1]) == pytest.approx(found.equation.speedup)
    text = why.paragraph(measured)
    assert f"it gave {found.drafting:.2f}" in text and f"{found.equation.speedup:.2f}x" in text
    assert "25% of rounds" in text
    again = metrics.measured(Comparison(comparison.lanes, repeats=((standard(), assisted(0.9, 3)),) * 2), "Assisted")
    assert f"all runs: {headline.runs(again)}." in why.paragraph(again)
    assert why.waterfall(again).data[0].x[-1] == "measured"


@pytest.mark.parametrize(("draft_s", "round_s"), [(0.02, VERIFY_S), (0.3, 0.3)], ids=["hidden", "longer"])
def test_drafts_of_a_second_device_take_what_they_are_longer_than_the_pass_before(draft_s, round_s):
    def lanes(drafter: str) -> metrics.Measured:
        made = [plain_round(0)]
        for _ in range(10):
            spent = {"draft_s": draft_s, "verify_s": VERIFY_S, "start_s": made[-1].end_s}
            made.append(drafted_round([2, 3], accepted=2, own=1, **spent))
        return metrics.measured(Comparison((standard(31), trace(made, drafter=drafter))), "Assisted")

    found = lanes("assistant")
    wanted = made_s(31) / (made_s(1) + draft_s + VERIFY_S + 9 * round_s)
    ahead = asynchronous(found)
    assert ahead.speedup == ahead.limit == pytest.approx(wanted) and ahead.foreseen == 1
    assert [it.wait_s + it.hidden_s for it in ahead.rounds] == pytest.approx([draft_s] * 10)
    assert f"Predicted, not measured: {wanted:.2f}x" in why.second_device(ahead)
    assert asynchronous(lanes("mtp")) is None, "it reads what the pass computes"


@pytest.mark.parametrize(("rank", "foreseen"), [(2, True), (CANDIDATES + 1, False), (0, False), (None, None)])
def test_a_draft_is_made_ahead_where_the_target_s_own_token_was_a_candidate(rank, foreseen):
    """Each draft has a wrong second token, and its correction is of this rank."""
    made = [plain_round(0)]
    for _ in range(10):
        spent = {"draft_s": 0.02, "verify_s": VERIFY_S, "start_s": made[-1].end_s}
        it = drafted_round([2, 3], accepted=1, own=1, **spent)
        made.append(replace(it, target=replace(it.target, rank=rank)))
    measured = metrics.measured(Comparison((standard(21), trace(made, drafter="assistant"))), "Assisted")
    ahead = asynchronous(measured)
    if foreseen is None:
        assert ahead is None, "a server that does not report it"
        return
    assert [it.foreseen for it in ahead.rounds] == [0.0, *[float(foreseen)] * 9], "the prefill hides nothing"
    hidden = 0.02 * sum(it.foreseen for it in ahead.rounds)
    assert ahead.rounds[-1].end_s == pytest.approx(made[-1].end_s - hidden)
    assert ahead.limit > ahead.speedup or foreseen
    bars = {(it.y[0], it.marker.pattern.shape): it for it in why.overlapped(measured, ahead).data}
    target, drafter = bars["predicted: target", ""], bars["predicted: drafter", "/"]
    assert target.base[-1] + target.x[-1] == pytest.approx(ahead.rounds[-1].end_s)
    assert drafter.base[-1] + drafter.x[-1] == pytest.approx(target.base[-1]), "a draft ends where its pass begins"


def made_s(tokens: int) -> float:
    return standard(tokens).rounds[-1].end_s


def test_a_prediction_that_misses_gets_a_reason():
    found, other = theory.what_if(standard(), assisted(0.7, 3)), assisted(0.7, 3)
    missed = replace(found, predicted=2 * found.measured)
    assert "a tenth" not in why.lookahead(found, other)
    assert "no cause" in why.lookahead(missed, other)
    noisy = [replace(it, verify_s=it.verify_s * (1 + i % 3)) for i, it in enumerate(other.rounds)]
    assert "is noisy" in why.lookahead(missed, replace(other, rounds=tuple(noisy)))


def test_a_lane_that_drafted_nothing_has_nothing_to_explain():
    plain: list[Round] = [plain_round(i, start_s=PASS_S * i) for i in range(5)]
    found = metrics.measured(Comparison((standard(), trace(plain, drafter="ngram"))), "Assisted")
    assert why.waterfall(found) is None and why.paragraph(found) == ""


def test_the_command_explains_a_saved_comparison(tmp_path, capsys):
    recorded = str(SHIPPED.parent / "recorded.json")
    shown = export.load((SHIPPED.parent / "recorded.json").read_bytes())
    main(["why", recorded, "--published", "2.8", "--published-length", "3.2", "--json", str(tmp_path / "why.json")])
    printed = capsys.readouterr().out
    assert "standard steps" in printed and "Published: 2.80x" in printed and "batch" in printed
    (lane,) = json.loads((tmp_path / "why.json").read_text())
    assert lane["attribution"]["equation"]["speedup"] == pytest.approx(metrics.ranked(shown)[0].speedup)
    with pytest.raises(SystemExit):
        main(["why", recorded, "--published-length", "3"])
    assert "goes with --published" in capsys.readouterr().err
