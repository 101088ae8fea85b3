"""A log of conversations to its verdict: what is read of it, what is decoded again, and what was estimated before."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from playground import metrics, results
from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.errors import PlaygroundError
from playground.experiments.events import ResultReady, Watch
from playground.experiments.kinds.options import Decoders
from playground.experiments.kinds.traffic import KIND, TrafficOptions, read_log, traffic_result
from playground.experiments.questions import spread
from playground.lane import LOCAL
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD, LaneDepths
from playground.trace import Trace
from playground.views import report, sweep, traffic
from tests.examples import drafted_round, plain_round, trace

CALL = {"type": "function", "function": {"name": "count", "arguments": "{}"}}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The waves?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": "Twelve."},
    ],
    "tools": [{"name": "count"}],
}
SHARED = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
ANSWERED = {"request": {"messages": [{"role": "user", "content": "Hi"}]},
            "response": {"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}}  # fmt: skip
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": ANSWERED["request"],
         "response": {"status_code": 200, "body": ANSWERED["response"]}}  # fmt: skip


def lines(*entries: object) -> str:
    return "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)


def test_every_assistant_s_turn_is_asked_again_under_its_own_history():
    log = read_log(lines(CHAT, SHARED), {"max_new_tokens": 8})
    first, second, third = log.turns
    assert (log.conversations, [turn.question.category for turn in log.turns]) == (2, ["turn 1", "turn 2", "turn 1"])
    assert first.question.request.prompt == "The waves?" and first.question.request.system == "Be brief."
    assert [turn.role for turn in second.question.request.turns] == ["user", "assistant", "tool"]
    assert json.loads(second.question.request.tools) == [{"name": "count"}]
    assert second.answer == Message("assistant", "Twelve.") and third.question.request.max_new_tokens == 8


@pytest.mark.parametrize(
    "text",
    [
        lines(SHARED),
        json.dumps([SHARED]),
        json.dumps(SHARED),
        lines(ANSWERED),
        lines(BATCH),
        json.dumps(CHAT["messages"]),
    ],
)
def test_the_forms_of_a_log(text, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(text)
    assert read_log(str(path), {}).turns == read_log(text, {}).turns != ()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("{", "line 2: .*not JSON"),
        ({"text": "x"}, "line 2: .*`conversations`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "line 2: Message 1 "),
        ({"messages": [{"role": "user", "content": "x"}]}, "line 2: .*no answer"),
        ({"body": {"messages": [{"role": "user", "content": "x"}]}}, "line 2: .*no answer"),
        ({"conversations": [{"from": "martian", "value": "x"}]}, "line 2: turn 1 "),
        ({**CHAT, "tools": [{"name": "f", "parameters": 3}]}, "line 2: Tool 1, f, "),
    ],
)
def test_a_broken_line_is_named_and_skipped_or_refused(broken, sentence):
    text = lines(SHARED, broken, SHARED)
    log = read_log(text, {})
    assert len(log.turns) == 2
    assert len(log.problems) == 1 and re.search(sentence, log.problems[0])
    with pytest.raises(PlaygroundError, match=sentence.split(": ")[0]):
        read_log(text, {}, "stop")


@pytest.mark.parametrize("text", ["/no/such/log.jsonl", "[]", lines({"messages": [{"role": "user", "content": "x"}]})])
def test_a_log_without_a_turn_is_refused(text):
    with pytest.raises(PlaygroundError, match="JSON lines"):
        read_log(text, {})


@pytest.fixture(scope="module")
def found(tiny_llama, tiny_tokenizer, tmp_path_factory):
    """A log of two conversations and a broken line, decoded by lookup and assistant."""
    folder = tmp_path_factory.mktemp("traffic") / "tiny"
    tiny_llama.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    pair = custom_pair(str(folder), str(folder), "assistant")
    options = TrafficOptions(log=lines(CHAT, "{", SHARED), drafters=("ngram", "assistant"), max_new_tokens=8)
    work, title = KIND.work(options, Decoders.of(pair))
    events = []
    work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, Watch(events.append))
    assert title == "A log on tiny + tiny: Prompt lookup and Assistant model, 8 tokens"
    return next(event.result for event in events if isinstance(event, ResultReady))


def test_a_log_comes_to_its_verdict(found):
    assert (found.conversations, found.turns, len(found.suite.rows)) == (2, 3, 9)
    assert found.failed and "line 2" in found.skipped[0]
    assert all(row.identical for row in found.suite.rows)
    assert found.best in ("ngram 5", "assistant 5") and found.interval is None
    text = report.text(report.of(found), folded=True)
    assert "Too few turns" in text and "By depth" in text and "1 entry left" in text


def test_an_interval_draws_the_turns_of_one_conversation_together(found):
    """Ten turns of two conversations are two draws, not ten: too few for an interval."""
    base, other = found.suite.rows[0], next(row for row in found.suite.rows if row.lane == "ngram 5")

    def rows(conversations):
        for question in range(10):
            at = question % conversations if conversations else None
            yield replace(base, question=question, conversation=at, runs_s=(1.0 + question / 50,), runs_tokens=(8,))
            yield replace(other, question=question, conversation=at, runs_s=(0.5 + question**2 / 99,), runs_tokens=(8,))

    alone, two, ten = (results.ratio(list(rows(n)), "ngram 5") for n in (0, 2, 10))
    assert two.interval is None and alone.interval == ten.interval is not None
    assert two.speedup == alone.speedup == ten.speedup
    numbers = {row.question: row.conversation for row in found.suite.rows}
    assert len(numbers) == 3 and len(set(numbers.values())) == 2


def test_without_texts_nothing_that_was_asked_is_in_the_result(found):
    left = traffic_result(found.suite, {}, 3, 2, ["log, line 2: Tool 1, secret,"], texts=False)
    saved = json.dumps(results.to_json(left))
    assert "waves" in json.dumps(results.to_json(found)) and "waves" not in saved and "secret" not in saved
    assert left.skipped == ("log, line 2",) and left.speedup == found.speedup


def test_the_depths_are_those_of_the_rounds(found):
    assert [it.lane for it in found.depths] == [STANDARD, *sorted({"ngram 5", "assistant 5"}, reverse=True)]
    for lane in found.depths:
        tokens = [row.tokens for row in found.suite.rows if row.lane == lane.lane]
        first = [len(it.rounds[0].tokens) for it in found.suite.traces if label_of(it) == lane.lane]
        assert sum(it.tokens for it in lane.figures) == sum(tokens) - sum(first)


def label_of(found_trace) -> str:
    return STANDARD if found_trace.lane.drafter == "none" else f"{found_trace.lane.drafter} 5"


def test_lookups_are_estimated_and_the_estimate_is_held_against_decoding(found):
    it = next(it for it in found.estimates if it.lane == "ngram 5")
    assert it.decoded == found.suite.of("ngram 5").mean_accepted_length
    assert it.counts.tokens > 0 and it.tokens_per_pass >= 1
    off = [each.tokens_per_pass / each.decoded - 1 for each in found.estimates]
    assert f"off by {min(off):+.0%} to {max(off):+.0%}" in " ".join(traffic.findings(found))
    assert min(off) > -0.1, "an assistant that is the target, over a log by another: what follows a cut is carried on"
    alone = replace(found, estimates=(it,))
    assert f"decoding gave {it.decoded:.2f}" in " ".join(traffic.findings(alone))


def test_the_result_survives_its_file(found):
    again = results.from_json(json.loads(json.dumps(results.to_json(found))))
    assert again == replace(found, suite=replace(found.suite, traces=()))


def test_the_report_can_leave_out_all_text(tiny_folder):
    pair = custom_pair(str(tiny_folder), None)
    secret = {"messages": [{"role": "user", "content": "SECRET"}, {"role": "assistant", "content": "SECRET too"}]}
    options = TrafficOptions(log=lines(secret), drafters=("ngram",), max_new_tokens=4, texts=False)
    work, _ = KIND.work(options, Decoders.of(pair))
    events = []
    work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, Watch(events.append))
    result = next(event.result for event in events if isinstance(event, ResultReady))
    assert "SECRET" not in json.dumps(results.to_json(result)) + report.markdown(report.of(result))


def test_a_sample_is_spread_over_the_log():
    log = read_log(lines(*[SHARED] * 10), {})
    assert len(spread(log.turns, 3)) == 3 and spread(log.turns, 99) == log.turns
    options = TrafficOptions(log=lines(*[SHARED] * 10), sample=2)
    work, _ = KIND.work(options, Decoders.of(custom_pair("x", None)))
    assert (len(work.questions), len(work.turns)) == (2, 10)


# --- depth ---


def deep(rounds, prompt: int, drafter: str = "none"):
    return replace(trace(rounds, drafter), prompt_ids=tuple(range(prompt)))


def test_rounds_count_for_the_depth_at_which_they_began_and_the_prefill_for_none():
    rounds = [
        plain_round(1, start_s=0.0, verify_s=1.0),
        drafted_round([2, 3], accepted=2, own=4, start_s=1.0),
        drafted_round([5, 6], accepted=0, own=7, start_s=1.2),
    ]
    shallow, deeper = metrics.by_depth([deep(rounds, 125, "ngram")])
    assert (shallow.low, shallow.high, shallow.tokens, shallow.acceptance_rate) == (0, 128, 3, 1)
    assert (deeper.low, deeper.high, deeper.tokens, deeper.acceptance_rate) == (128, 256, 1, 0)
    assert shallow.tokens_per_s == pytest.approx(15) and deeper.pass_s == pytest.approx(0.1)


def test_it_stops_paying_where_nothing_deeper_is_faster():
    plain = metrics.by_depth([deep([plain_round(i, start_s=0.1 * i) for i in range(4)], at) for at in (10, 130, 300)])
    fast = deep([plain_round(0), drafted_round([2, 3], accepted=2, own=4, start_s=0.1)], 10, "ngram")
    slow = deep([plain_round(0), drafted_round([2, 3], accepted=0, own=4, start_s=0.1)], 130, "ngram")
    slower = replace(slow, prompt_ids=tuple(range(300)))
    assert metrics.stops_paying(plain, metrics.by_depth([fast, slow, slower])) == 128
    assert metrics.stops_paying(plain, metrics.by_depth([slow, replace(fast, prompt_ids=tuple(range(300)))])) is None


def test_a_speed_up_by_depth_says_how_many_answers_it_has_until_they_are_enough_for_an_interval():
    def answers(count: int, seconds: float, drafter: str) -> list[Trace]:
        each = [
            [plain_round(0), plain_round(1, start_s=0.1, verify_s=seconds * (1 + 0.1 * (i % 3)))] for i in range(count)
        ]
        return [deep(rounds, 10, drafter) for rounds in each]

    for count, shown in ((3, "2.00× in 3 answers"), (8, "2.00× (1.84 to 2.17)")):
        lanes = [
            LaneDepths(STANDARD, tuple(metrics.by_depth(answers(count, 0.2, "none")))),
            LaneDepths("ngram", tuple(metrics.by_depth(answers(count, 0.1, "ngram")))),
        ]
        rows = sweep.by_depth(lanes, {STANDARD: "Standard", "ngram": "Prompt lookup"}).rows
        assert [row[-1] for row in rows] == ["", shown]


def test_answers_of_one_conversation_vary_together_at_a_depth():
    rounds = [plain_round(0), plain_round(1, start_s=0.1)]
    traces = [deep(rounds, 10) for _ in range(16)]
    (alone,), (two,), (eight,) = (
        metrics.by_depth(traces, units=units) for units in (None, [0, 1] * 8, [*range(8)] * 2)
    )
    assert alone.answers == two.answers == eight.answers == 16
    assert two.over is None and alone.over and eight.over.freedom < alone.over.freedom


def test_a_log_of_twenty_conversations_is_read():
    log = read_log(str(Path(__file__).parents[1] / "files" / "conversations.jsonl"), {})
    assert (log.conversations, len(log.turns), log.problems) == (20, 30, ())
