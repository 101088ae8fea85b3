"""vLLM as a backend, on recorded answers of version 0.32."""

from __future__ import annotations

import json

import pytest

from playground import metrics
from playground.backends.connect import connect
from playground.backends.server import Piece
from playground.backends.vllm import Chunk, Step, VllmServer, estimated, rounds_of
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Request
from tests.backends.fake_server import RECORDED, Answer, serve, vllm
from tests.examples import dialogue

REQUEST = Request("Say the line “🦀 waves and waves and waves” four times.", max_new_tokens=40)


@pytest.fixture
def server():
    with serve(vllm()) as server:
        yield server


def recorded() -> dict:
    return json.loads((RECORDED / "vllm.json").read_text(encoding="utf-8"))


def traced(url: str, request: Request = REQUEST):
    backend = connect(url)
    seen = []
    return decode(backend, backend.lane(), request, Watch(), seen.append), seen


def test_the_last_chunk_tells_what_each_step_drafted(server):
    trace, seen = traced(server.url)
    drafts = [(len(round_.accepted), len(round_.drafted)) for round_ in trace.rounds if round_.drafted]
    assert drafts == [(5, 5), (0, 5), (5, 5), (1, 5), (5, 5), (3, 5), (5, 5), (3, 5), (1, 5)]
    assert metrics.measure(trace).tokens == 40 and len(trace.rounds) == 13
    assert trace.rounds[-1].target is None, "the limit cut the last draft"
    assert trace.text == 4 * "🦀 waves and waves and waves.\n"
    assert [round_.end_s for round_ in seen] == [round_.end_s for round_ in trace.rounds]
    assert [len(round_.tokens) for round_ in seen] == [len(round_.tokens) for round_ in trace.rounds]
    assert not trace.environment.notes
    assert (trace.finish, trace.lane.drafter, trace.lane.lookahead) == ("length", "server", 5)


def test_a_second_request_gives_each_token_its_text_p_and_margin(server):
    trace, _ = traced(server.url)
    assert [token.text for token in trace.tokens[:5]] == ["", "", "🦀", " waves", " and"]
    assert all(0 < token.p <= 1 and token.margin >= 0 for token in trace.tokens)
    assert len(trace.prompt_ids) == 46
    sampled, _ = traced(server.url, Request(REQUEST.prompt, max_new_tokens=40, temperature=0.7))
    assert {token.p for token in sampled.tokens} == {None}, "vLLM reports them at temperature 1"


def test_without_it_the_chunks_are_shown_as_they_came(server):
    answer = server.routes["/v1/completions"]
    refused = Answer({"error": {"message": "prompt_logprobs is off"}}, 400)
    server.routes["/v1/completions"] = lambda body, headers: answer(body, headers) if "stream" in body else refused
    trace, _ = traced(server.url)
    assert trace.text == 4 * "🦀 waves and waves and waves.\n"
    assert {token.p for token in trace.tokens} == {None}


@pytest.mark.parametrize("others", [0, 7])
def test_without_reported_steps_the_counters_are_an_estimate_and_say_so(server, others):
    answers = recorded()
    for event in answers["answer"]:
        event.pop("metrics", None)
    server.routes["/v1/completions"] = lambda body, _: Answer(answers["answer" if "stream" in body else "scored"])
    after = answers["after"].replace(' 193.0', f' {193 + others}.0')  # fmt: skip
    shown = iter([answers["before"], answers["before"], after])  # to connect, before, after
    server.routes["/metrics"] = lambda *_: Answer(next(shown))
    trace, _ = traced(server.url)
    m = metrics.measure(trace)
    assert (m.drafted, m.accepted, m.verify_passes) == (45, 27, 13), "the last, cut draft looks rejected"
    assert "estimated" in trace.environment.notes[0]
    assert [("approximate" in note) for note in trace.environment.notes[1:]] == [True] * bool(others)


def test_a_server_without_speculation_has_plain_rounds(server):
    answers = recorded()
    metrics_ = "\n".join(line for line in answers["before"].splitlines() if "spec_decode" not in line)
    server.routes["/metrics"] = Answer(metrics_)
    trace, seen = traced(server.url)
    assert (trace.lane.name, trace.lane.drafter) == ("vLLM: standard", "none")
    assert len(trace.rounds) == len(seen) == 40 and not any(round_.drafted for round_ in trace.rounds)


def test_an_end_of_text_is_special(server):
    answers = recorded()
    end = {"choices": [{"text": ".", "token_ids": [30, 2], "finish_reason": "stop"}]}
    server.routes["/v1/completions"] = lambda body, _: Answer([*answers["answer"][:3], end])
    trace, _ = traced(server.url)
    assert trace.finish == "eos"
    assert trace.tokens[-1].special and trace.text == "🦀 waves and waves and waves."
    end["choices"][0]["stop_reason"] = ".\n"  # the token of which is text, though not shown
    trace, _ = traced(server.url)
    assert trace.finish == "stop string" and not trace.tokens[-1].special
    assert any("after it" in note for note in trace.environment.notes)


def test_the_request_asks_for_its_distribution_and_for_no_cached_prefix(server):
    request = Request("x", system="Be brief.", temperature=0.7, top_p=0.9, top_k=5, repetition_penalty=1.1, seed=3)
    traced(server.url, request)
    asked = dict((path, body) for path, body in server.asked if path == "/tokenize" or (body and "stream" in body))
    assert [message["role"] for message in asked["/tokenize"]["messages"]] == ["system", "user"]
    body = asked["/v1/completions"]
    assert (body["temperature"], body["top_p"], body["top_k"], body["repetition_penalty"]) == (0.7, 0.9, 5, 1.1)
    assert body["seed"] == 3 and body["cache_salt"] and body["return_token_ids"]


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (dict(json_schema='{"type": "object"}'), {"json": '{"type": "object"}'}),
        (dict(regex="a+"), {"regex": "a+"}),
        (dict(grammar='start: "a"'), {"grammar": 'start: "a"'}),
    ],
)
def test_a_grammar_is_sent_and_what_the_server_says_of_unmasked_tokens_is_not_taken_for_p(server, grammar, sent):
    trace, _ = traced(server.url, Request(REQUEST.prompt, max_new_tokens=REQUEST.max_new_tokens, **grammar))
    bodies = [body for path, body in server.asked if path == "/v1/completions" and "stream" in body]
    assert bodies[-1]["structured_outputs"] == sent
    assert {token.p for token in trace.tokens} == {None}


def test_limits_in_another_order_are_noted(server):
    for limits, noted in ((dict(min_p=0.1), False), (dict(min_p=0.1, top_p=0.9), True)):
        trace, _ = traced(server.url, Request(REQUEST.prompt, temperature=0.7, **limits))
        assert any("before top-p" in note for note in trace.environment.notes) == noted


def test_a_server_that_stops_sending_before_the_end(server):
    answers = recorded()
    server.routes["/v1/completions"] = lambda *_: Answer(answers["answer"][:4])
    with pytest.raises(PlaygroundError, match="broke off"):
        traced(server.url)


def test_it_is_found_by_asking(server):
    backend = connect(server.url, "starter")
    assert isinstance(backend, VllmServer)
    assert backend.describe(backend.lane()).versions["vllm"] == "0.32.0"
    with pytest.raises(PlaygroundError, match="'gpt'"):
        connect(server.url, "gpt")


def chunks(*sizes: int) -> list[Chunk]:
    return [Chunk([Piece(0, "a")] * n, float(i + 1)) for i, n in enumerate(sizes)]


def counted(rounds) -> list[tuple[int, int, int]]:
    return [(len(round_.tokens), len(round_.accepted), len(round_.drafted)) for round_ in rounds]


def test_chunks_that_hold_several_steps_are_taken_apart():
    steps = [Step(2, 4), Step(0, 4), Step(3, 4)]
    rounds = rounds_of(chunks(1, 8), steps, 4)
    assert counted(rounds) == [(1, 0, 0), (3, 2, 4), (1, 0, 4), (4, 3, 4)]
    assert [round_.end_s for round_ in rounds] == [1.0, 2.0, 2.0, 2.0]


def test_steps_that_accepted_nothing_go_to_the_one_token_chunks_before_the_next_draft():
    rounds = rounds_of(chunks(1, 1, 1, 3, 1), [Step(0, 4), Step(2, 4), Step(0, 4)], 4)
    assert counted(rounds) == [(1, 0, 0), (1, 0, 0), (1, 0, 4), (3, 2, 4), (1, 0, 4)]


def test_an_estimate_has_the_counts_of_the_request():
    found = estimated(chunks(1, 1, 4, 1, 2), drafts=4, drafted=18)
    assert [step.accepted for step in found] == [0, 3, 0, 1]
    assert sum(step.drafted for step in found) == 18
    assert estimated(chunks(1, 1), drafts=0, drafted=0) == []


def test_a_conversation_is_passed_on_and_its_turns_share_a_cache_of_their_own():
    asked = {"history": dialogue("Hi", "Hello."), "tools": '[{"name": "f"}]', "template": "enable_thinking=false"}
    with serve(vllm()) as server:
        backend = connect(server.url)
        for request in (
            Request("And now?", **asked),
            Request("And now?", **{**asked, "history": dialogue("Hi", "Hello.", "More?", "Yes.")}),
            Request("And now?", **{**asked, "history": dialogue("Ho", "Hello.")}),
            Request("And now?", **asked, prefix_cache=False),
        ):
            decode(backend, backend.lane(), request, Watch())
        tokenized = next(body for path, body in server.asked if path == "/tokenize")
        streamed = [body for _, body in server.asked if body and body.get("stream")]
    salts, seeds = ([body[name] for body in streamed] for name in ("cache_salt", "seed"))
    assert tokenized["chat_template_kwargs"] == {"enable_thinking": False} and tokenized["tools"]
    assert salts[0] == salts[1] and len(set(salts)) == 3
    assert seeds[0] == seeds[3] and len(set(seeds)) == 3, "a seed for each turn"
