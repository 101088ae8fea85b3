from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from playground import metrics
from playground.experiments.events import Finished
from playground.lane import adapted
from playground.trace import Comparison, PassTime, Round, Trace
from playground.ui.compare import shown as screen
from playground.views import facts, headline, report, run_details
from tests.examples import ENVIRONMENT, drafted_round, plain_round, trace, tree_round
from tests.ui import fakes


def standard(*ids: int, margin: float = 0.5, **request) -> Trace:
    return trace([plain_round(id_, margin=margin, start_s=0.1 * i) for i, id_ in enumerate(ids)], **request)


def in_dtype(lane: Trace, dtype: str) -> Trace:
    return dataclasses.replace(lane, environment=dataclasses.replace(ENVIRONMENT, dtype=dtype))


def measured(baseline: Trace, other: Trace, *repeats) -> metrics.Measured:
    return metrics.measured(Comparison((baseline, other), baseline.lane.name, repeats), other.lane.name)


def assisted(*rounds, **request) -> Trace:
    return trace(rounds, drafter="ngram", **request)


TWO_AT_ONCE = drafted_round([1], accepted=1, own=2)


def forced(round_: Round) -> Round:
    """The same under a grammar that forced its first draft token, and whose masks took 4 ms."""
    first, *others = round_.drafted
    return replace(round_, drafted=(replace(first, forced=True), *others), mask_s=0.004)


def test_a_grammar_has_its_cost_and_its_forced_tokens_among_the_figures():
    m = metrics.measure(assisted(*map(forced, (TWO_AT_ONCE, drafted_round([4, 5], accepted=2, own=6)))))
    shown = {figure.label: figure.shown for figure in facts.figures(m, drafting=True)}
    assert (shown["Masks"], shown["Forced"]) == ("1.60 ms/token", "2 of 3")
    assert "Forced" not in {figure.label for figure in facts.figures(m, drafting=False)}
    without = metrics.measure(assisted(TWO_AT_ONCE))
    assert not {"Masks", "Forced"} & {figure.label for figure in facts.figures(without, drafting=True)}


def test_what_an_adapter_costs_in_acceptance_is_said_beside_the_same_drafter_without_it():
    base, plain = standard(1, 2, 3), assisted(drafted_round([1, 2], accepted=2, own=3))
    tuned = assisted(drafted_round([1, 2], accepted=1, own=9))
    tuned = replace(tuned, lane=adapted(tuned.lane, "some/where/lora"))
    shown = report.of(Comparison((base, plain, tuned)))
    assert (
        re.search(r"adapter lora\b.* 50% .* 100% without", shown.findings[1]) and "somewhere" not in shown.findings[1]
    )
    assert metrics.ranked(Comparison((base, tuned, plain)))[0].ours is plain, "another target is no faster drafter"


def test_figures_carry_units_and_only_a_drafting_lane_has_those_of_drafts():
    m = metrics.measure(assisted(drafted_round([1, 2], accepted=1, own=3), drafted_round([4], accepted=1, own=5)))
    shown = {figure.label: (figure.value, figure.unit) for figure in facts.figures(m, drafting=True)}
    assert shown["First token"] == ("200", "ms")
    assert shown["Acceptance"] == ("67", "% of 3 drafted")
    assert shown["Tokens per check"] == ("2.00", "")
    assert shown["Passes saved"] == ("2", "of 4")
    assert "Acceptance" not in {figure.label for figure in facts.figures(m, drafting=False)}


def test_figures_of_nothing_are_dashes():
    values = [figure.value for figure in facts.figures(metrics.measure_rounds([]), drafting=True)]
    assert values == ["–", "–", "0", "0.00", "–", "–", "0"]
    acceptance = next(it for it in facts.figures(metrics.measure_rounds([]), drafting=True) if it.label == "Acceptance")
    assert acceptance.unit == "", "no share of nothing"


def test_the_speedup_is_the_ratio_of_tokens_per_second():
    assert headline.figure(measured(standard(1, 2), assisted(TWO_AT_ONCE))) == "≈ 1.00×"
    assert "second ÷ first" in headline.meaning(measured(standard(1), standard(1, name="Standard again")))


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (standard(1, 2), assisted(TWO_AT_ONCE), "Identical output: 2 tokens."),
        (standard(1), assisted(plain_round(1)), "Identical output: 1 token."),
        (
            in_dtype(standard(1, 3, margin=0.02), "bfloat16"),
            assisted(TWO_AT_ONCE),
            "Outputs differ from token 2. The target's two best logits are 0.020 apart there: "
            "a near-tie, which bfloat16 rounding can flip.",
        ),
        (
            in_dtype(standard(1, 3, margin=1.2), "int8 weights, bfloat16"),
            assisted(TWO_AT_ONCE),
            "Outputs differ from token 2. The target's two best logits are 1.200 apart there: "
            "a near-tie, which int8 and bfloat16 rounding can flip.",
        ),
        (
            in_dtype(standard(1, 3, margin=1.2), "int4 weights, bfloat16"),
            assisted(TWO_AT_ONCE),
            "Outputs differ from token 2. The target's two best logits are 1.200 apart there: "
            "more than int4 and bfloat16 rounding explains.",
        ),
        (
            standard(1, 3, margin=0.02),
            assisted(TWO_AT_ONCE),
            "Outputs differ from token 2. The target's two best logits are 0.020 apart there: "
            "more than float32 rounding explains.",
        ),
        (standard(1), assisted(TWO_AT_ONCE), "Outputs differ from token 2, where one of them ends."),
        (
            standard(1, 3, temperature=0.7),
            assisted(TWO_AT_ONCE, temperature=0.7),
            "Random sampling: texts differ from token 2 on, as expected; both follow the target's distribution.",
        ),
        (
            dataclasses.replace(standard(1), finish="stopped"),
            assisted(TWO_AT_ONCE),
            "Identical output as far as both lanes got: 1 token.",
        ),
        (
            dataclasses.replace(standard(1), finish="stopped"),
            dataclasses.replace(assisted(), finish="stopped"),
            "Stopped before both lanes had output.",
        ),
    ],
)
def test_one_sentence_says_whether_the_outputs_are_the_same(first, second, sentence):
    assert facts.sameness(measured(first, second)) == sentence


def test_the_table_aligns_both_lanes_and_names_the_weights():
    lines = report.text(report.of(Comparison((standard(1, 2), assisted(TWO_AT_ONCE))))).splitlines()
    assert "made by hand" in lines[0]
    head = next(line for line in lines if line.split() == ["Standard", "Assisted"])
    speed = next(line for line in lines if line.startswith("Speed"))
    assert speed.split() == ["Speed", "10.0", "tok/s", "10.0", "tok/s"] and len(speed) == len(head)
    assert any("1 model step instead" in line for line in lines)
    assert lines[-1].startswith("vllm serve t "), "the command of the nearest engine ends it"


def test_details_repeat_what_was_asked():
    lane = standard(1, temperature=0.7, top_k=40, seed=3, system="be brief")
    rows = dict(run_details.details(measured(lane, assisted(TWO_AT_ONCE))))
    assert rows["Decoding"].endswith(" temperature 0.7, top-p 1, top-k 40, seed 3")
    assert rows["System prompt"] == "be brief"
    assert rows["Lookahead"] == "5 tokens, constant"


def test_details_tell_what_verify_passes_take_where_it_was_measured():
    lanes = standard(1), assisted(TWO_AT_ONCE)
    assert "Verify passes" not in dict(run_details.details(measured(*lanes)))
    environment = dataclasses.replace(ENVIRONMENT, pass_times=(PassTime(1, 0.04), PassTime(4, 0.05), PassTime(16, 0.1)))
    timed = measured(*(dataclasses.replace(lane, environment=environment) for lane in lanes))
    told = dict(run_details.details(timed))["Verify passes"]
    assert told.startswith("4 tokens: 1.25x; 16 tokens: 2.50x ") and told.endswith("(40.0 ms)")


def test_a_finished_run_says_what_its_reader_waited_and_an_opened_one_where_it_ran(monkeypatch):
    now = iter((100.0, 118.4))
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: next(now)))
    comparison, shown = Comparison((standard(1, 2), assisted(TWO_AT_ONCE))), screen.Screen()
    shown.take(Finished(comparison))
    assert shown.status.text == "Done in 18.4 s on a test's CPU."
    shown.load(comparison)
    assert shown.status.text.startswith("Ran on a test's CPU · ")


def test_no_pass_is_saved_where_each_gave_one_token():
    twice = assisted(plain_round(1), plain_round(2, start_s=0.1))
    assert facts.passes(measured(standard(1, 2), twice)).startswith("No steps ")


def test_a_busy_machine_is_named_beside_the_speedup():
    steady = [plain_round(i, start_s=i, verify_s=0.1) for i in range(30)]
    busy = [plain_round(i, start_s=i, verify_s=0.9 if i % 3 == 0 else 0.1) for i in range(30)]
    assert headline.caveat(trace(steady), trace(steady)) == ""
    assert " 9.0x " in headline.caveat(trace(steady), trace(busy))
    assert "Timing is" in report.text(report.of(Comparison((trace(steady), trace(busy, name="Standard again")))))


def test_rejections_say_what_a_wider_draft_would_have_held():
    round_ = drafted_round([1, 2], accepted=1, own=9)
    ranked = [dataclasses.replace(round_, target=dataclasses.replace(round_.target, rank=n)) for n in (2, 2, 0)]
    assert run_details.rejections(assisted(*ranked)) == (
        "3; the target's token was the drafter's 2nd choice: 2; none of its tokens: 1"
    )
    assert run_details.rejections(assisted(round_)).startswith("none")


def doubts(baseline, other, *repeats):
    return headline.doubts(measured(baseline, other, *repeats))


def test_a_speedup_that_its_parts_cannot_explain_is_doubted():
    slow = trace([plain_round(i, start_s=0.2 * i, verify_s=0.2) for i in range(4)])
    quick = trace([plain_round(i, start_s=0.1 * i, verify_s=0.1) for i in range(4)], drafter="ngram")
    assert "0.50 standard steps" in doubts(slow, quick)[0]
    other = trace([plain_round(9 - i, start_s=0.2 * i, verify_s=0.2) for i in range(4)], drafter="ngram")
    assert "different text from token 1 " in doubts(slow, other)[-1]


def test_a_run_that_was_stopped_says_over_which_tokens_its_speedup_is():
    plain = trace([plain_round(i, start_s=0.1 * i) for i in range(12)])
    assisted = trace([drafted_round([0, 1], accepted=2, own=2, start_s=0.0)], drafter="ngram")
    stopped = dataclasses.replace(assisted, finish="stopped")
    assert any("first 3 tokens" in doubt for doubt in doubts(plain, stopped))
    assert not any("first" in doubt for doubt in doubts(plain, assisted))
    assert headline.cut(plain, dataclasses.replace(stopped, rounds=())) == ""


def test_the_range_of_one_run_by_turns_is_over_its_rounds():
    base, ours = (dataclasses.replace(it, schedule="by turns") for it in fakes.comparison(60).lanes)
    assert re.fullmatch(r"95 % interval [\d.]+ to [\d.]+, within one run", headline.runs(measured(base, ours)))
    assert headline.runs(measured(base, ours, (base, ours))).endswith(", 2 runs each")


def test_the_ratio_of_the_times_that_both_lanes_show_is_named_where_it_is_another():
    base, ours = (dataclasses.replace(it, schedule="by turns") for it in fakes.comparison(60).lanes)
    last = base.rounds[-1]
    late = dataclasses.replace(base, rounds=(*base.rounds[:-1], dataclasses.replace(last, end_s=last.end_s + 9)))
    found = measured(late, ours)
    times = [metrics.measure(it).total_s for it in (late, ours)]
    said = f"the whole times shown, {times[0]:.2f} ÷ {times[1]:.2f} s, give {times[0] / times[1]:.2f}×"
    assert headline.runs(found).endswith(said) and found.speedup < 0.8 * found.whole_run_ratio
    assert "whole times" not in headline.runs(measured(base, ours))


def test_of_trees_acceptance_is_what_was_kept_of_what_could_be():
    found = metrics.measure(trace([plain_round(1), tree_round(), tree_round(start_s=1.0)], "tree"))
    shown = facts.acceptance(found)
    assert (shown.shown, shown.rate) == ("50% of 4 tree levels", "50%")
    assert "all 10 nodes 20%" in shown.meaning
    chain = metrics.measure(trace([drafted_round([1, 9], accepted=1, own=2)], "ngram"))
    assert facts.acceptance(chain).shown == "50% of 2 drafted"


def test_the_precision_of_amx_is_said_and_a_status_line_names_the_weights_alone():
    where = dataclasses.replace(ENVIRONMENT, dtype="bfloat16 weights, float32", runner="native (AVX-512)", threads=2)
    assert facts.precision(where) == "bfloat16 weights, computed with float32"
    by_amx = dataclasses.replace(where, runner="native (AMX)")
    assert "16 bits" in facts.precision(by_amx)
    line = "a test's CPU · bfloat16 weights · 2 threads · own CPU kernels (AMX)"
    assert facts.environment_line(by_amx) == line
    assert facts.precision(ENVIRONMENT) == "float32"


def test_an_answer_of_one_pass_is_a_tie_however_long_that_took():
    """Prefill against prefill: the same work, whatever the clock says."""
    base, slow = trace([plain_round(1, verify_s=0.1)]), trace([plain_round(1, verify_s=0.2)], "ngram")
    again = measured(base, slow, (base,))
    assert headline.figure(again).startswith("≈ 0.50×") and again.outcome == "unclear"


def test_a_speedup_within_the_noise_is_a_tie():
    plain, slower = (trace([plain_round(i, start_s=s * i, verify_s=s) for i in range(4)]) for s in (0.1, 0.12))
    lane = trace([plain_round(i, start_s=0.105 * i, verify_s=0.105) for i in range(4)], drafter="ngram")
    (once,) = doubts(plain, lane)
    assert once == "No clear difference: one run each, and two runs of one lane may differ by 5%."
    again = measured(plain, lane, (slower,))
    assert headline.runs(again).endswith(", 1 run each")
    assert any(it.startswith("No clear ") and f"({headline.runs(again)})" in it for it in headline.doubts(again))
    assert again.interval[0] < again.speedup < 1 < again.interval[1], "the interval that is shown decides"
    sampled = [dataclasses.replace(t, request=dataclasses.replace(t.request, temperature=1.0)) for t in (plain, lane)]
    assert not any("different text" in doubt for doubt in doubts(*sampled)), "sampled texts differ, as they should"


def test_a_title_has_the_speedup_of_the_lane_that_is_shown():
    plain = trace([plain_round(i % 3 + 1, start_s=0.1 * i) for i in range(6)])
    slow, fast = (
        trace(
            [drafted_round([1, 2], accepted=2, own=3, start_s=s * i, verify_s=s - 0.1) for i in range(2)], "ngram", name
        )
        for s, name in ((0.3, "Slow"), (0.2, "Fast"))
    )
    comparison = Comparison((plain, slow, fast))
    assert headline.title(comparison, "Fast") == "1.50× (one run), Fast and 1 more: a prompt · t"
    assert headline.title(comparison, "Slow") == "≈ 1.00× (one run), Slow and 1 more: a prompt · t"
    again = dataclasses.replace(comparison, repeats=((plain, fast_as(slow, fast), fast),) * 2)
    assert headline.title(again, "Slow").startswith(f"{1.5 ** (2 / 3):.2f}× (1."), "of all three passes"


def fast_as(lane, other):
    return dataclasses.replace(lane, rounds=other.rounds)
