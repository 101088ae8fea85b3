from __future__ import annotations

import dataclasses

import pytest

from playground import metrics
from playground.trace import Comparison, PassTime, Trace
from playground.views import report
from tests.examples import ENVIRONMENT, drafted_round, plain_round, trace


def standard(*ids: int, margin: float = 0.5, **request) -> Trace:
    return trace([plain_round(id_, margin=margin, start_s=0.1 * i) for i, id_ in enumerate(ids)], **request)


def in_dtype(lane: Trace, dtype: str) -> Trace:
    return dataclasses.replace(lane, environment=dataclasses.replace(ENVIRONMENT, dtype=dtype))


def assisted(*rounds, **request) -> Trace:
    return trace(rounds, drafter="ngram", **request)


TWO_AT_ONCE = drafted_round([1], accepted=1, own=2)


def test_figures_carry_units_and_only_a_drafting_lane_has_those_of_drafts():
    m = metrics.measure(assisted(drafted_round([1, 2], accepted=1, own=3), drafted_round([4], accepted=1, own=5)))
    shown = {figure.label: (figure.value, figure.unit) for figure in report.figures(m, drafting=True)}
    assert shown["TTFT"] == ("200", "ms")
    assert shown["Acceptance"] == ("67", "%")
    assert shown["Accepted length"] == ("2.00", "tok/pass")
    assert shown["Passes saved"] == ("2", "of 4")
    assert "Acceptance" not in {figure.label for figure in report.figures(m, drafting=False)}


def test_figures_of_nothing_are_dashes():
    values = [figure.value for figure in report.figures(metrics.measure_rounds([]), drafting=True)]
    assert values == ["–", "–", "0", "0.00", "–", "–", "0"]


def test_the_speedup_is_the_ratio_of_tokens_per_second():
    assert report.speedup(Comparison((standard(1, 2), assisted(TWO_AT_ONCE)))) == "1.00×"
    again = Comparison((standard(1), standard(1)))
    assert "second ÷ first standard run" in report.speedup_meaning(again)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (standard(1, 2), assisted(TWO_AT_ONCE), "The same 2 tokens."),
        (standard(1), assisted(plain_round(1)), "The same 1 token."),
        (
            in_dtype(standard(1, 3, margin=0.02), "bfloat16"),
            assisted(TWO_AT_ONCE),
            "They part at token 2, where the target's two best tokens were 0.020 logits apart: "
            "a near-tie that bfloat16 rounding can turn.",
        ),
        (
            in_dtype(standard(1, 3, margin=1.2), "int8 weights, bfloat16"),
            assisted(TWO_AT_ONCE),
            "They part at token 2, where the target's two best tokens were 1.200 logits apart: "
            "a near-tie that int8 and bfloat16 rounding can turn.",
        ),
        (
            in_dtype(standard(1, 3, margin=1.2), "int4 weights, bfloat16"),
            assisted(TWO_AT_ONCE),
            "They part at token 2, where the target's two best tokens were 1.200 logits apart: "
            "more than int4 and bfloat16 rounding explains.",
        ),
        (
            standard(1, 3, margin=0.02),
            assisted(TWO_AT_ONCE),
            "They part at token 2, where the target's two best tokens were 0.020 logits apart: "
            "more than float32 rounding explains.",
        ),
        (standard(1), assisted(TWO_AT_ONCE), "They part at token 2, where one of them ends."),
        (
            standard(1, 3, temperature=0.7),
            assisted(TWO_AT_ONCE, temperature=0.7),
            "Sampled outputs need not be the same: both follow the target's distribution. They part at token 2.",
        ),
        (
            dataclasses.replace(standard(1), finish="stopped"),
            assisted(TWO_AT_ONCE),
            "The same 1 token as far as both go: the run was stopped.",
        ),
        (
            dataclasses.replace(standard(1), finish="stopped"),
            dataclasses.replace(assisted(), finish="stopped"),
            "There is nothing to compare: the run was stopped.",
        ),
    ],
)
def test_one_sentence_says_whether_the_outputs_are_the_same(first, second, sentence):
    assert report.sameness(Comparison((first, second))) == sentence


def test_the_table_aligns_both_lanes_and_names_the_weights():
    lines = report.table(Comparison((standard(1, 2), assisted(TWO_AT_ONCE)))).splitlines()
    assert lines[0].split() == ["Standard", "Assisted"]
    speed = next(line for line in lines if line.startswith("Speed"))
    assert speed.split() == ["Speed", "10.0", "10.0", "tok/s"]
    assert "made by hand" in lines[-1]
    assert "1 target pass instead of 2." in lines[-2]


def test_details_repeat_what_was_asked():
    lane = standard(1, temperature=0.7, top_k=40, seed=3, system="be brief")
    rows = dict(report.details(Comparison((lane, assisted(TWO_AT_ONCE)))))
    assert rows["Decoding"] == "sampled at temperature 0.7, top-p 1, top-k 40, seed 3"
    assert rows["System prompt"] == "be brief"
    assert rows["Lookahead"] == "5 tokens, constant"


def test_details_tell_what_verify_passes_take_where_it_was_measured():
    lanes = Comparison((standard(1), assisted(TWO_AT_ONCE)))
    assert "Verify passes" not in dict(report.details(lanes))
    environment = dataclasses.replace(ENVIRONMENT, pass_times=(PassTime(1, 0.04), PassTime(4, 0.05), PassTime(16, 0.1)))
    timed = Comparison(tuple(dataclasses.replace(lane, environment=environment) for lane in lanes.lanes))
    told = dict(report.details(timed))["Verify passes"]
    assert told == "over 4 tokens 1.25, over 16 tokens 2.50 times one over a single token, which took 40.0 ms"


def test_a_busy_machine_is_named_beside_the_speedup():
    steady = [plain_round(i, start_s=i, verify_s=0.1) for i in range(30)]
    busy = [plain_round(i, start_s=i, verify_s=0.9 if i % 3 == 0 else 0.1) for i in range(30)]
    assert report.caveat(Comparison((trace(steady), trace(steady)))) == ""
    assert "9.0-fold" in report.caveat(Comparison((trace(steady), trace(busy))))
    assert "Unsteady" in report.table(Comparison((trace(steady), trace(busy))))


def test_rejections_say_what_a_wider_draft_would_have_held():
    round_ = drafted_round([1, 2], accepted=1, own=9)
    ranked = [dataclasses.replace(round_, target=dataclasses.replace(round_.target, rank=n)) for n in (2, 2, 0)]
    assert report.rejections(assisted(*ranked)) == (
        "of 3 rejections, the target's choice was 2 times its second; 1 time a token that it never drafts"
    )
    assert report.rejections(assisted(round_)).startswith("none")
