"""Segments: behind the real templates of the families, an output of each is cut where its special tokens say."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from playground import metrics
from playground.conversation import Message, as_dict
from playground.decoding.text import Detokenizer, chat_ids, markers
from playground.experiments import suite as summaries
from playground.lane import label
from playground.metrics.segments import MARKERS
from playground.results import STANDARD, SuiteResult
from playground.trace import Comparison, Round, TargetToken, Trace
from playground.views import run_details, stage
from tests.examples import drafted_round, plain_round, trace

TEMPLATES = Path(__file__).parent / "files" / "templates"
ASKED = [Message("user", "Weather in Oslo? <think> hard about ``` too.")]
FENCED = "See:\n```py\nx = 1\n```\nDone."
IN_CODE = [("answer", "See:\n"), ("code", "```py\nx = 1\n```\n"), ("answer", "Done.")]
QWEN = "<tool_call>\n{}\n</tool_call>"
ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}

# A template, its arguments, and an output in its segments, whose texts join to the output.
CASES = [
    ("Qwen-Qwen3-0.6B", ON, [("thinking", "<think>\nI look.\n```</think>"), ("answer", "\n"), ("tool call", QWEN)]),
    ("Qwen-Qwen3-0.6B", OFF, IN_CODE),
    ("Qwen3.5-4B", ON, [("thinking", "I look.</think>"), ("answer", "\n\nHm. "), ("tool call", QWEN)]),
    ("Qwen3.5-4B", OFF, IN_CODE),
    ("Qwen3-Coder", {}, [("answer", "Hm."), ("tool call", QWEN), *IN_CODE]),
    ("GLM-4.6", OFF, [("answer", "\nHm."), ("tool call", QWEN)]),
    ("GLM-4.7-Flash", ON, [("thinking", "I look.</think>"), *IN_CODE]),
    ("GLM-4.7-Flash", OFF, IN_CODE),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {}, [("thinking", "<think>\nI look.\n</think>"), *IN_CODE]),
    (
        "deepseek-ai-DeepSeek-V3.1",
        {"thinking": True},
        [
            ("thinking", "I look.</think>"),
            ("answer", "Hm."),
            ("tool call", "<｜tool▁calls▁begin｜>f{}<｜tool▁calls▁end｜>"),
        ],
    ),
    ("deepseek-ai-DeepSeek-V3.1", {"thinking": False}, IN_CODE),
    (
        "deepseek-ai-DeepSeek-V3.2",
        {"thinking": True},
        [("thinking", "I look.</think>"), ("answer", "Hm.<"), ("tool call", "｜DSML｜function_calls>…</｜DSML｜x>")],
    ),
    ("deepseek-ai-DeepSeek-V4", {"thinking": False}, IN_CODE),
    (
        "google-gemma-4-31B-it",
        ON,
        [("thinking", "<|channel>thought\nI look.<channel|>"), ("tool call", "<|tool_call>call:f{}<tool_call|>")],
    ),
    ("google-gemma-4-31B-it", OFF, IN_CODE),
    (
        "openai-gpt-oss-120b",
        {"reasoning_effort": "high"},
        [
            ("thinking", "<|channel|>analysis<|message|>I look.<|end|>"),
            ("tool call", "<|start|>assistant<|channel|>commentary to=functions.f <|message|>{}<|call|>"),
            ("answer", "<|start|>assistant<|channel|>final<|message|>Done."),
        ],
    ),
]


def of_text(tokenizer, prompt_ids: list[int], text: str) -> Trace:
    """A lane that has written the text, a token a round."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = Detokenizer(tokenizer, prompt_ids).commit(ids)
    rounds = [
        Round(1, (), TargetToken(id_, piece, False, None, None, "plain"), float(i), 0.0, 1.0, float(i + 1))
        for i, (id_, piece) in enumerate(zip(ids, pieces, strict=True))
    ]
    base = trace(rounds)
    return Trace(
        base.lane, base.request, base.environment, tuple(prompt_ids), base.rounds, "eos", markers=markers(tokenizer)
    )


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    """With the markers of all families as tokens, some of which are not special, as in the real ones."""
    found = copy.deepcopy(tiny_tokenizer)
    found.add_special_tokens({"additional_special_tokens": [it for it in MARKERS if "call" not in it]})
    found.add_tokens([it for it in MARKERS if "call" in it])
    return found


def cut(lane: Trace) -> list[tuple[str, str]]:
    """The output's segments in order, with their texts."""
    tokens = zip(metrics.segments(lane), lane.tokens, strict=True)
    groups = itertools.groupby(tokens, key=lambda each: each[0])
    return [(segment, "".join(token.text for _, token in group)) for segment, group in groups]


@pytest.mark.parametrize(("name", "arguments", "expected"), CASES, ids=lambda it: it if isinstance(it, str) else "")
def test_an_output_behind_a_real_template(tokenizer, name, arguments, expected):
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    prompt = chat_ids(tokenizer, list(map(as_dict, ASKED)), arguments=arguments)
    assert cut(of_text(tokenizer, prompt, "".join(text for _, text in expected))) == expected


SAID = {  # what the next turn has as the answer to the cases above, and the thinking that templates may leave out
    "Qwen-Qwen3-0.6B": (f"{QWEN}", "I look.\n```"),
    "openai-gpt-oss-120b": ("{}<|call|>Done.", "I look."),  # the marker is no special token of this tokenizer
    "GLM-4.7-Flash": (FENCED, "I look."),
}


@pytest.mark.parametrize("name", SAID)
def test_the_next_turn_has_the_answer_without_what_names_its_segments(tokenizer, name):
    arguments, expected = next((arguments, expected) for case, arguments, expected in CASES if case == name)
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    prompt = chat_ids(tokenizer, list(map(as_dict, ASKED)), arguments=arguments)
    lane = of_text(tokenizer, prompt, "".join(text for _, text in expected))
    said = metrics.answered(lane)
    assert (said.content, said.reasoning_content) == SAID[name]
    again = tokenizer.decode(chat_ids(tokenizer, [*map(as_dict, [*ASKED, said]), as_dict(Message("user", "Go on."))]))
    assert "analysis<|message|>" not in again and again.count("Done.") == (
        FENCED in said.content or "Done" in said.content
    )


def test_an_answer_without_thinking_is_said_as_it_is(tiny_tokenizer):
    lane = of_text(tiny_tokenizer, [5], "\n see ")
    assert metrics.answered(lane) == Message("assistant", lane.text)


def test_under_a_grammar_nothing_begins_as_thinking(tokenizer):
    """Where the prompt's end opens the thinking, a grammar holds all the same, and what is written is the answer."""
    tokenizer.chat_template = (TEMPLATES / "Qwen3.5-4B.jinja").read_text(encoding="utf-8")
    lane = of_text(tokenizer, chat_ids(tokenizer, list(map(as_dict, ASKED)), arguments=ON), "no")
    held = replace(lane, request=replace(lane.request, regex="no"))
    assert (cut(lane), cut(held)) == ([("thinking", "no")], [("answer", "no")])


def test_a_marker_that_is_spelt_out_is_text(tiny_tokenizer):
    assert cut(of_text(tiny_tokenizer, [5], "<think>no</think>")) == [("answer", "<think>no</think>")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("````md\n```\nx\n```\n````\nend", "````md\n```\nx\n```\n````\n"),  # a shorter fence closes nothing
        ("~~~\n```\n~~~\nend", "~~~\n```\n~~~\n"),
        ("a ``` b\nend", ""),  # not at the start of a line
        ("```\nx\n``` not closed\nend", "```\nx\n``` not closed\nend"),
    ],
)
def test_fences_open_and_close_as_in_markdown(tiny_tokenizer, text, code):
    found = cut(of_text(tiny_tokenizer, [5], text))
    assert "".join(part for segment, part in found if segment == "code") == code


def thought() -> Trace:
    """Two rounds of thinking that end in its end, then two of the answer; token 7 is the marker."""
    rounds = [
        plain_round(1, start_s=0.0, verify_s=1.0),
        drafted_round([2, 7], accepted=2, own=8, start_s=1.0),
        drafted_round([9, 10], accepted=0, own=11, start_s=1.2),
        plain_round(12, start_s=1.4, verify_s=0.2),
    ]
    base = trace(rounds, "ngram")
    return Trace(
        base.lane, base.request, base.environment, (6, 3), base.rounds, "eos", markers=((6, "<think>"), (7, "</think>"))
    )


def test_a_round_counts_for_the_segment_that_it_began_in_and_the_prefill_has_no_speed():
    assert metrics.segments(thought()) == ["thinking"] * 3 + ["answer"] * 3
    thinking, answer = metrics.by_segment(thought())
    assert (thinking.segment, thinking.tokens, thinking.rounds) == ("thinking", 4, 2)
    assert (thinking.drafted, thinking.accepted, thinking.timed) == (2, 2, 3)
    assert thinking.tokens_per_s == pytest.approx(3 / 0.2) and thinking.mean_accepted_length == 2
    assert (answer.tokens, answer.acceptance_rate, answer.seconds) == (2, 0, pytest.approx(0.4))


def test_the_stage_has_the_parts_of_an_output_and_none_of_one_that_is_whole():
    plain = trace([plain_round(1)])
    view, other = (stage.LaneView("Standard") for _ in range(2))
    view.finish(thought())
    other.finish(plain)
    assert view.value()["segments"] == [("thinking", 3), ("answer", 3)]
    assert other.value()["segments"] == []


def test_runs_add_up():
    both = metrics.add_segments([metrics.by_segment(thought())] * 2)
    assert [(it.segment, it.tokens, it.rounds) for it in both] == [("thinking", 8, 4), ("answer", 4, 4)]


def both(factor: float, others: float = 1.0) -> tuple[Trace, Trace]:
    """A baseline and a lane that takes `factor` of its time for the thinking, and `others` for the answer."""
    base = replace(thought(), lane=replace(thought().lane, name="Standard", drafter="none"))
    ends = [1.0, 1.0 + 0.2 * factor, 1.0 + 0.2 * factor + 0.2 * others, 1.0 + 0.2 * factor + 0.4 * others]
    starts = [0.0, *ends]
    rounds = [replace(it, start_s=start, end_s=end) for it, start, end in zip(base.rounds, starts, ends, strict=False)]
    return base, replace(base, lane=thought().lane, rounds=tuple(rounds))


def test_a_segment_s_speed_up_is_of_the_passes_in_which_both_ran_with_its_interval_or_says_that_there_was_one():
    base, fast = both(0.5)
    once = Comparison((base, fast), "Standard")
    found = run_details.of_comparison(once)
    assert found.rows[2][-5:] == ("4", "100%", "2.00", "30.0", "2.00×, one run")
    assert found.rows[0][-1] == "" and found.rows[3][-1] == "1.00×, one run"
    again = replace(once, repeats=(both(0.8), both(0.4)))
    assert re.fullmatch(r"1\.84× \(1\.\d\d to [23]\.\d\d\)", run_details.of_comparison(again).rows[2][-1])
    slower_baseline = replace(once, repeats=((replace(both(4)[1], lane=base.lane),),))
    assert run_details.of_comparison(slower_baseline).rows[2][-1] == "2.00×, one run", "of the pass in which both ran"
    answers = tuple(replace(it, markers=()) for it in once.lanes)
    assert run_details.of_comparison(Comparison(answers, "Standard")) is None


@pytest.mark.parametrize(("prompts", "shown"), [(3, r"1\.67×, 3 prompts"), (9, r"1\.67× \(1\.\d\d to \d\.\d\d\)")])
def test_over_prompts_it_is_pooled_with_an_interval_where_they_are_enough(prompts, shown):
    rows = []
    for question in range(prompts):
        base, ours = both((0.4, 0.6, 0.8)[question % 3])
        runs = {STANDARD: base, label(ours.lane): ours}
        rows += [summaries.row(question, 1, "qa", lane, [it], [base]) for lane, it in runs.items()]
    suite = SuiteResult(base.environment, base.request, 1, (ours.lane,), tuple(rows), tuple(summaries.summarise(rows)))
    found = run_details.of_suite(suite)
    assert re.fullmatch(shown, found.rows[2][-1])
    assert found.rows[2][1:3] == ("thinking", f"{4 * prompts}") and found.rows[0][-1] == ""
