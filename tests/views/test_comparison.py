from __future__ import annotations

import argparse
import dataclasses
import shlex

import pytest

from playground.commands import compare
from playground.commands.arguments import chosen_pair
from playground.conversation import Message, ToolCall
from playground.lane import read_request as asked_for
from playground.presets import load_pairs
from playground.settings import ANSWER
from playground.trace import Comparison
from playground.views.comparison import markdown, repeat
from tests.examples import drafted_round, plain_round, trace
from tests.ui import fakes

PAIRS = load_pairs()[0]


def of(lane: dict | None = None, **request) -> Comparison:
    """A comparison whose drafting lane has these settings, on this request."""
    standard, assisted = fakes.comparison(tokens=12, **request).lanes
    return Comparison((standard, dataclasses.replace(assisted, lane=dataclasses.replace(assisted.lane, **lane or {}))))


def parsed(command: str) -> argparse.Namespace:
    python, minus_m, playground, *words = shlex.split(command)
    assert (python, minus_m, playground) == ("python", "-m", "playground")
    parser = argparse.ArgumentParser()
    compare.add(parser.add_subparsers())
    return parser.parse_args(words)


def test_a_table_of_each_lane_then_what_was_run_and_where():
    text = markdown(fakes.comparison(), [])
    head, rule, *rows = text.splitlines()
    assert head == "|  | Standard | Prompt lookup |"
    assert rule == "|---|---:|---:|"
    assert any(row.startswith("| Speed-up") and " | 1× | " in row for row in rows)
    assert "| Tokens | 60 | 60 |" in rows
    assert "- Identical output: 60 tokens." in rows
    assert "- Decoding: greedy" in rows
    assert any(row.startswith("- Ran on: Fake CPU") for row in rows)
    assert rows[-3].startswith("```sh") and rows[-2].startswith("python -m playground compare ")


def test_lanes_of_different_text_say_so():
    lanes = trace([plain_round(1), plain_round(2, start_s=1)]), trace([drafted_round([1], accepted=1, own=3)], "ngram")
    assert "token 2" in markdown(Comparison(lanes), [])


def test_other_people_s_words_stay_text():
    hostile = "<img src=x onerror=alert(1)> | [x](http://evil) *b* `c` www.evil.com\n# head"
    text = markdown(of({"name": hostile, "target": hostile}, prompt="````\nrm"), [])
    outside, fence, _ = text.partition("`````sh\n")
    assert fence and text.rstrip().endswith("\n`````")
    assert "<img" not in outside.replace("\\<", "") and "](" not in outside.replace("\\]", "")
    assert "http://" not in outside and "www." not in outside
    assert "\n# head" not in outside
    assert outside.splitlines()[0].replace("\\|", "").count("|") == 4


@pytest.mark.parametrize(
    ("name", "drafter"), [("starter", "tree"), ("starter", "ngram"), ("layerskip-llama3.2-1b", "early-exit")]
)
def test_the_command_runs_the_same_again(name, drafter):
    pair = PAIRS[name]
    lane = {
        "target": pair.target,
        "drafter": drafter,
        "assistant": pair.weights_of(drafter),
        "lookahead": 7,
        "policy": "heuristic",
        "confidence_threshold": pair.confidence_threshold,
        "nodes": pair.nodes,
        "keep_free_gb": 1.5,
    }
    asked = {"temperature": 0.7, "seed": 3, "system": "--be 'brief'", "chat_template": False, "max_new_tokens": 12}
    comparison = of(lane, prompt="--two\nlines; $HOME `x`", **asked)

    command = repeat(comparison, PAIRS.values())
    options = parsed(command)
    assert options.pair == name and "--nodes" not in command
    assert (options.drafter, options.lookahead, options.policy) == (drafter, 7, "heuristic")
    assert options.keep_free_gb == 1.5 and options.dtype == "bfloat16"
    again = asked_for(options.prompt, options.messages, {field: getattr(options, field) for field in ANSWER})
    assert again == comparison.standard.request

    assert chosen_pair(parsed(repeat(comparison, []))).weights_of(drafter) == pair.weights_of(drafter)


def test_the_command_of_a_conversation_repeats_it():
    history = (Message("user", "Weather in Oslo?"), Message("assistant", "", "", (ToolCall("weather"),)))
    asked = {
        "history": (*history, Message("tool", "'rain'")),
        "tools": '[{"name": "weather"}]',
        "template": "enable_thinking=false\ndate='24 November'",
    }
    comparison = of({}, prompt="", **asked)
    options = parsed(repeat(comparison, PAIRS.values()))
    again = asked_for(options.prompt or "", options.messages, {field: getattr(options, field) for field in ANSWER})
    assert again == comparison.standard.request
    none = parsed("python -m playground compare --prompt=x --messages= --tools= --template=")
    assert (none.messages, none.tools, none.template) == ("", "", "")
