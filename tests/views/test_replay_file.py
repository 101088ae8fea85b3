from __future__ import annotations

import dataclasses
import json
import re

from playground import export
from playground.trace import Comparison, Memory
from playground.views import replay_file
from tests.ui import fakes

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> $title ${x} \u2028"


def embedded(text: str, name: str) -> object:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def hostile() -> Comparison:
    """A comparison with markup in its prompt, its tokens, its names and its environment."""
    comparison = fakes.comparison(prompt=HOSTILE, system=HOSTILE)
    lanes = []
    for trace in comparison.lanes:
        first, *more = trace.rounds
        first = dataclasses.replace(first, target=dataclasses.replace(first.target, text=HOSTILE))
        lane = dataclasses.replace(trace.lane, target=HOSTILE)
        if trace is not comparison.standard:
            lane = dataclasses.replace(lane, name=HOSTILE)
        environment = dataclasses.replace(trace.environment, device_name=HOSTILE)
        memory = Memory(1_000_000, 0, 0, 0)
        lanes.append(
            dataclasses.replace(trace, lane=lane, environment=environment, rounds=(first, *more), memory=memory)
        )
    return Comparison(tuple(lanes))


def test_the_file_holds_the_trace_and_what_the_stage_draws():
    comparison = fakes.comparison()
    text = replay_file.build(comparison)
    assert export.from_json(embedded(text, "trace")) == comparison
    packed = embedded(text, "value")
    value = json.loads(packed["rest"])
    assert value["replay"] and value["banner"] == "Run at 2026-01-01 00:00."
    assert value["status"]["text"] == "Ran on Fake CPU · bfloat16 · 2 threads."
    assert packed["logs"][1] and value["ran"].endswith("2026-01-01")
    assert "Acceptance by position" in text and "<summary>Details" in text


def test_the_file_asks_for_nothing_from_anywhere():
    text = replay_file.build(fakes.comparison())
    assert "default-src 'none'" in text
    assert not re.search(r"<link|<iframe|<img|\bsrc=|@import|url\((?![\"']?(data:|#))", text)


def test_other_people_s_words_are_never_tags():
    plain, text = replay_file.build(fakes.comparison()), replay_file.build(hostile())
    for tag in ("<script", "</script", "<!--", "<img"):
        assert text.count(tag) == plain.count(tag)
    assert embedded(text, "value")["logs"][0]
    assert "$title" in text, "a placeholder's name in a prompt is not filled in"


def test_a_lane_that_drafts_nothing_has_no_table_of_acceptance():
    standard, other = fakes.comparison().lanes
    again = dataclasses.replace(standard, lane=dataclasses.replace(standard.lane, name="Standard again"))
    assert "Acceptance by position" in replay_file.build(Comparison((standard, other)))
    assert "Acceptance by position" not in replay_file.build(Comparison((standard, again)))
