"""llama-server as a backend: recorded answers, and a real server on the starter."""

from __future__ import annotations

import json

import pytest

from playground import export, metrics
from playground.backends.connect import connect
from playground.backends.llama_server import LlamaServer
from playground.errors import PlaygroundError
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Request
from playground.trace import Reused
from playground.views import headline, run_details
from playground.views.comparison import repeat
from tests.backends.fake_server import Answer, llama_server, serve
from tests.examples import dialogue

REQUEST = Request("Say the line “🦀 waves and waves and waves” four times.", max_new_tokens=40)


@pytest.fixture
def server():
    with serve(llama_server()) as server:
        yield server


def traced(url: str, request: Request = REQUEST):
    backend = connect(url)
    return decode(backend, backend.lane(), request, Watch())


def test_each_verify_step_is_a_round(server):
    trace = traced(server.url)
    m = metrics.measure(trace)
    assert (m.tokens, m.drafted, m.accepted) == (40, 26, 20)
    assert m.verify_passes == m.tokens - m.accepted
    assert trace.text == 4 * "🦀 waves and waves and waves.\n"
    assert [len(round_.accepted) for round_ in trace.rounds if round_.drafted] == [6, 6, 0, 6, 2]
    assert [round_.target.reason for round_ in trace.rounds if round_.drafted] == [
        *["bonus", "bonus", "correction", "bonus", "bonus"]
    ]
    assert trace.finish == "length"


def test_what_the_server_does_not_report_is_unknown(server):
    trace = traced(server.url)
    rejecting = next(round_ for round_ in trace.rounds if round_.drafted and not round_.accepted)
    assert [token.decision for token in rejecting.drafted] == ["rejected", *5 * ["unverified"]]
    assert {(token.id, token.q, token.p) for token in rejecting.drafted} == {(None, None, None)}
    assert {(round_.lookahead, round_.draft_s, round_.verify_s) for round_ in trace.rounds} == {(None, None, None)}
    assert trace.token_ids[0] is None and trace.token_ids[3] == 6147, "a token inside a character is not sent"
    assert (trace.environment.device, trace.environment.threads, trace.memory) == (None, None, None)
    assert trace.environment.dtype == "Q4_1" and "llama.cpp" in trace.environment.versions
    (weights,) = trace.environment.weights
    assert weights.startswith("SmolLM2-135M-Instruct.Q4_1.gguf ") and weights.endswith(f" {server.url}")


def test_the_request_asks_for_its_distribution_and_nothing_else(server):
    traced(server.url, Request("x", temperature=0.7, top_p=0.9, top_k=5, repetition_penalty=1.1, seed=2**40))
    asked = server.asked[-1][1]
    assert asked["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["repeat_penalty"]) == (0.7, 0.9, 5, 1.1)
    assert 0 <= asked["seed"] < 2**32 - 1
    assert asked["prompt"][:3] == [1, 9690, 198] and asked["cache_prompt"] is False


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (dict(json_schema='{"type": "object"}'), {"json_schema": {"type": "object"}}),
        (dict(regex="a/b+"), {"grammar": "%llguidance {}\nstart: /a\\/b+/"}),
        (dict(grammar='start: "a"'), {"grammar": '%llguidance {}\nstart: "a"'}),
    ],
)
def test_a_grammar_is_sent_in_the_form_that_llama_server_takes(server, grammar, sent):
    trace = traced(server.url, Request("x", **grammar))
    asked = server.asked[-1][1]
    assert {name: asked[name] for name in ("json_schema", "grammar") if name in asked} == sent
    assert len(trace.environment.notes) == 1, "it wrote something else"


def test_what_a_grammar_allows_is_not_noted_and_a_broken_one_is_not_sent(server):
    assert traced(server.url, Request("x", regex="(🦀 waves and waves and waves.\n?)+")).environment.notes == ()
    sent = len(server.asked)
    for broken, sentence in ((dict(json_schema='{"type": 7}'), "type must"), (dict(regex="[^\\s\\S]"), "No text")):
        with pytest.raises(PlaygroundError, match=sentence):
            traced(server.url, Request("x", **broken))
    assert not any({"json_schema", "grammar"} & set(body or ()) for _, body in server.asked[sent:])


@pytest.mark.parametrize("stop_type", ["eos", "word"])
def test_an_end_inside_a_draft_leaves_the_rest_unverified(server, stop_type):
    events = server.routes["/completion"].body
    ended = [*events[:12], {**events[-1], "stop_type": stop_type, "timings": events[11]["timings"]}]
    server.routes["/completion"].body = ended
    trace = traced(server.url)
    assert trace.finish == {"eos": "eos", "word": "stop string"}[stop_type]
    assert trace.rounds[-1].target is None
    assert [token.decision for token in trace.rounds[-1].drafted] == ["accepted"] * 2 + ["unverified"] * 4


def test_a_build_that_obeys_the_lookahead_is_found_by_trying(server):
    assert not connect(server.url).obeys_lookahead
    event = {"content": "a", "tokens": [5], "stop": False}
    counts = [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    server.routes["/completion"].body = [
        {**event, "timings": {"predicted_n": n, "draft_n": d, "draft_n_accepted": a}} for n, d, a in counts
    ]
    backend = connect(server.url)
    assert backend.obeys_lookahead and backend.drafter == "server"
    assert server.asked[-1][1]["speculative.n_max"] == 1


def test_two_servers_make_a_comparison_that_is_saved_and_opened(server):
    with serve(llama_server()) as second:
        backends = [connect(server.url), connect(second.url)]
        lanes = [backends[0].lane()]
        lanes.append(backends[1].lane(taken=lanes))
        comparison = run(
            lanes,
            REQUEST,
            {backend.name: backend for backend in backends},
            Watch(),
            baseline=lanes[0].name,
        )
    assert export.load(json.dumps(export.to_json(comparison))) == comparison
    assert metrics.first_difference(*comparison.lanes) is None and metrics.measure(comparison.others[0]).tokens == 40
    assert dict(run_details.details(*metrics.ranked(comparison)))["Lookahead"].endswith("server")


def test_lanes_of_different_programs_are_not_taken_for_speculation_alone(server):
    trace = traced(server.url)
    local = export.load(json.dumps(export.to_json(_beside(trace))))
    assert any(
        "different programs" in doubt for doubt in headline.doubts(metrics.measured(local, local.others[0].lane.name))
    )


def _beside(trace):
    from dataclasses import replace

    from playground.trace import Comparison

    lane = replace(trace.lane, name="Standard", backend="local", drafter="none")
    return Comparison((replace(trace, lane=lane), trace))


def test_it_is_found_by_asking(server):
    assert isinstance(connect(f"{server.url}/v1/"), LlamaServer)


def test_the_command_that_repeats_it_names_the_servers(server):
    trace = traced(server.url)
    command = repeat(_beside(trace), ())
    assert f"--server {server.url}" in command and "--target" not in command


def test_a_conversation_is_passed_on_with_its_tools_and_its_cache(server):
    asked = {"history": dialogue("Hi", "Hello."), "tools": '[{"name": "f"}]', "template": "enable_thinking=false"}
    backend = connect(server.url)
    backend.warm_up(backend.lane(), Request("And now?", **asked), lambda: False)
    earlier = next(body for path, body in server.asked if path == "/apply-template")
    assert [message["content"] for message in earlier["messages"]][:2] == ["Hi", "Hello."]
    assert earlier["messages"][2]["content"] != "And now?", "its own turn must not be in the cache"
    server.asked.clear()
    request = Request("And now?", **asked)
    decode(backend, backend.lane(), request, Watch())
    templated = next(body for path, body in server.asked if path == "/apply-template")
    assert [message["role"] for message in templated["messages"]] == ["user", "assistant", "user"]
    assert templated["tools"][0]["function"]["name"] == "f"
    assert templated["chat_template_kwargs"] == {"enable_thinking": False}
    body = next(body for path, body in server.asked if path == "/completion")
    assert body["cache_prompt"] is True and body["seed"] == request.turn_seed != request.seed


@pytest.mark.parametrize("asked", [{}, {"history": dialogue("Hi", "Hello."), "prefix_cache": False}])
def test_the_cache_is_off_where_nothing_is_earlier_or_it_is_not_wanted(server, asked):
    traced(server.url, Request("And now?", **asked))
    assert server.asked[-1][1]["cache_prompt"] is False


def test_the_tokens_that_it_reports_as_cached_are_in_the_trace(server):
    recorded = server.routes["/completion"].body
    last = json.loads(json.dumps(recorded[-1]))
    last["timings"]["cache_n"] = 17
    server.routes["/completion"] = Answer([*recorded[:-1], last])
    assert traced(server.url).reused == Reused(17)
