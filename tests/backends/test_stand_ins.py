"""What is measured of a server is what the server is: speeds and counts of stand-ins that are known."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from benchmarks import engines
from playground import export, metrics
from playground.backends.connect import Servers, connect, counts_of
from playground.backends.openai import BEYOND
from playground.backends.server import CACHED
from playground.errors import PlaygroundError
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Request
from playground.metrics.lane import inter_token_latencies
from playground.trace import Comparison, Trace
from playground.views import charts, facts, report
from tests.backends import stand_in
from tests.backends.stand_in import TEXTS, URL, StandIn, Wait, standing_in

REQUEST = Request("Count.", max_new_tokens=len(TEXTS))
PLAIN = "/v1/chat/completions"


def traced(server: StandIn, monkeypatch, url: str = URL, request: Request = REQUEST) -> Trace:
    with standing_in(server, monkeypatch):
        backend = connect(url)
        return decode(backend, backend.lane(), request, Watch())


# The server, its kind, its lane, and what it counts: verify passes, drafted and accepted tokens.
KNOWN = [
    (stand_in.llama_server, "llama-server", "llama-server: draft-eagle3", (4, 9, 5)),
    (stand_in.vllm, "vLLM", "vLLM: speculative", (4, 9, 5)),
    (stand_in.sglang, "SGLang", "SGLang: eagle3", (4, 9, 5)),
    (stand_in.mlx_vlm, "mlx-vlm", "mlx-vlm: drafts unknown", (4, 9, 5)),
    (stand_in.lm_studio, "LM Studio", "LM Studio: drafts unknown", (None, 9, 5)),
    (stand_in.ollama, "Ollama", "Ollama: drafts unknown", (None, None, None)),
    (stand_in.plain, "OpenAI-compatible server", "OpenAI-compatible server: drafts unknown", (None, None, None)),
]


@pytest.mark.parametrize(("server", "kind", "name", "counts"), KNOWN, ids=[kind for _, kind, _, _ in KNOWN])
def test_speeds_and_counts_come_out_as_the_server_has_them(server, kind, name, counts, monkeypatch):
    trace = traced(server(), monkeypatch)
    m = metrics.measure(trace)
    assert (trace.lane.backend, trace.lane.name) == (f"{kind} at {URL}", name)
    assert (m.verify_passes, m.drafted, m.accepted) == counts
    assert (m.tokens, m.ttft_s, m.total_s, m.tokens_per_s) == (9, 0.25, 1.0, 9.0)
    assert m.acceptance_rate == (5 / 9 if counts[1] else None)
    assert m.mean_accepted_length == (9 / 4 if counts[0] else None)
    assert (trace.text, trace.finish) == ("".join(TEXTS), "length")
    gaps = [gap for gap in inter_token_latencies(trace.rounds) if gap]
    assert gaps == [0.125, 0.375, 0.25]


def test_accepted_tokens_that_the_end_of_the_answer_cut_off_are_left_out_and_noted(monkeypatch):
    """An answer of 9 tokens, of which the prefill gave one, holds at most 8 that were drafted."""
    whole, cut = (traced(stand_in.mlx_vlm(15, accepted), monkeypatch) for accepted in (8, 12))
    counted = [(m.tokens, m.drafted, m.accepted) for m in map(metrics.measure, (whole, cut))]
    assert counted == [(9, 15, 8), (9, 11, 8)]
    (note,) = set(cut.environment.notes) - set(whole.environment.notes)
    assert "12 accepted" in note and "9 tokens" in note


def test_acceptance_by_position_is_known_where_the_steps_are(monkeypatch):
    for server in (stand_in.llama_server, stand_in.vllm, stand_in.sglang):
        found = metrics.acceptance_by_position(traced(server(), monkeypatch).rounds)
        assert [(at.drafted, at.accepted) for at in found] == [(3, 2), (3, 2), (3, 1)]
    assert not metrics.acceptance_by_position(traced(stand_in.mlx_vlm(), monkeypatch).rounds)


def test_what_is_unknown_is_a_dash_wherever_it_is_shown(monkeypatch):
    base, other = traced(stand_in.plain(), monkeypatch), traced(stand_in.ollama(), monkeypatch, URL + "#off")
    comparison = Comparison((base, other), base.lane.name)
    shown = {figure.label: figure.shown for figure in facts.figures(metrics.measure(base), drafting=True)}
    assert (shown["Tokens"], shown["Speed"], shown["Acceptance"]) == ("9", "9.0 tok/s", "–")
    assert (shown["Tokens per check"], shown["Passes saved"]) == ("–", "–")
    assert metrics.whole_run_ratio(base, other) == 1.0 and metrics.first_difference(base, other) is None
    assert metrics.equation(base, other) is None
    assert facts.sentences(*metrics.ranked(comparison)) == ["Identical output."]
    assert not charts.race(comparison).data, "when each token came is not known"
    assert "–" in report.text(report.of(comparison))
    assert export.from_json(export.to_json(comparison)) == comparison


def test_a_suite_takes_counts_and_refuses_where_tokens_are_unknown(monkeypatch):
    base, other = (traced(server(), monkeypatch) for server in (stand_in.plain, stand_in.lm_studio))
    row = suite.row(0, 1, "", other.lane.name, [other], [base])
    assert (row.tokens, row.passes, row.accepted, row.drafted) == (9, None, 5, 9)
    assert (row.speedup, row.identical) == (1.0, True)
    uncounted = traced(stand_in.plain(id="x"), monkeypatch)
    assert metrics.measure(uncounted).tokens is metrics.measure(uncounted).tokens_per_s is None
    assert metrics.measure(uncounted).ttft_s == 0.25 and uncounted.text == "".join(TEXTS)
    assert metrics.whole_run_ratio(base, uncounted) is None
    with pytest.raises(PlaygroundError, match="how many"):
        suite.row(0, 1, "", uncounted.lane.name, [uncounted], [base])


def test_other_texts_differ_and_are_not_taken_for_the_same_for_want_of_ids(monkeypatch):
    base, other = (traced(stand_in.plain(), monkeypatch) for _ in range(2))
    changed = replace(other.rounds[1], target=replace(other.rounds[1].target, text=" other"))
    other = replace(other, rounds=(other.rounds[0], changed, *other.rounds[2:]))
    assert metrics.first_difference(base, other).index == 1
    assert not suite.row(0, 1, "", other.lane.name, [other], [base]).identical


# --- what is asked of them ---


def test_lm_studio_is_asked_for_the_draft_model_of_the_address(monkeypatch):
    with standing_in(stand_in.lm_studio(), monkeypatch) as server:
        compared = Servers(f"{URL}#tiny-draft", URL).with_local([])
        assert [lane.name for lane in compared.lanes] == ["LM Studio: drafts unknown", "LM Studio: tiny-draft"]
        for lane in compared.lanes:
            decode(compared.backends[lane.backend], lane, REQUEST, Watch())
        assert [body.get("draft_model") for path, body in server.asked if path.startswith("/api")] == [
            None,
            "tiny-draft",
        ]
        assert compared.lanes[1].server_url == f"{URL}#tiny-draft"


@pytest.mark.parametrize(("url", "drafts"), [(URL, 5), (f"{URL}#off", 0)])
def test_ollama_is_asked_for_the_lookahead_and_for_none(url, drafts, monkeypatch):
    server = stand_in.ollama()
    trace = traced(server, monkeypatch, url)
    assert server.body("/api/chat")["options"]["draft_num_predict"] == drafts
    assert trace.lane.drafter == ("unknown" if drafts else "none")
    assert trace.environment.versions["ollama"] == "0.32.14"


def test_a_server_that_cannot_choose_what_drafts_says_so(monkeypatch):
    with standing_in(stand_in.sglang(), monkeypatch), pytest.raises(PlaygroundError, match="#small"):
        connect(f"{URL}#small")


def test_sglang_s_cache_is_kept_out_and_others_are_warmed_up_with_another_prompt(monkeypatch):
    for server, path in ((stand_in.sglang(), "/v1/completions"), (stand_in.plain(), PLAIN)):
        with standing_in(server, monkeypatch):
            backend = connect(URL)
            backend.warm_up(backend.lane(), REQUEST, lambda: False)
            trace = decode(backend, backend.lane(), REQUEST, Watch())
        first, second = (body for at, body in server.asked if at == path)
        if path == PLAIN:
            assert first["messages"] != second["messages"] and CACHED in trace.environment.notes
        else:
            assert first["cache_salt"] != second["cache_salt"] and CACHED not in trace.environment.notes


def test_what_is_outside_of_openai_s_api_is_sent_only_where_it_is_asked_for(monkeypatch):
    server = stand_in.plain()
    assert BEYOND not in traced(server, monkeypatch).environment.notes
    assert not {"top_k", "min_p", "repetition_penalty"} & server.body(PLAIN).keys()
    sampled = replace(REQUEST, temperature=0.5, top_k=7)
    assert BEYOND in traced(server, monkeypatch, request=sampled).environment.notes
    assert server.body(PLAIN)["top_k"] == 7


def test_reasoning_and_tool_calls_are_text_of_the_answer(monkeypatch):
    server = stand_in.plain()
    call = {"function": {"name": "look", "arguments": "{}"}}
    server.answers[PLAIN] = [
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]},
    ]
    trace = traced(server, monkeypatch)
    assert (trace.text, trace.finish) == ("hmlook{}", "eos")


# --- broken ones ---


def test_steps_that_arrive_together_are_counted_and_named_as_an_assumption(monkeypatch):
    server = stand_in.sglang()
    first, *steps = (event for event in server.answers["/v1/completions"] if not isinstance(event, Wait))
    ids = [id_ for event in steps[:2] for id_ in event["choices"][0]["token_ids"]]
    steps[1]["choices"][0]["token_ids"] = ids
    server.answers["/v1/completions"] = [first, Wait(0.5), *steps[1:]]
    trace = traced(server, monkeypatch)
    assert any("an assumption" in note for note in trace.environment.notes)
    assert metrics.measure(trace).tokens == 9


@pytest.mark.parametrize("make", [stand_in.plain, stand_in.ollama, stand_in.lm_studio, stand_in.sglang])
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (httpx.ReadTimeout("x"), "hangs"),
        (httpx.RemoteProtocolError("peer closed"), "broke off"),
        ({"error": {"message": "out of memory"}}, "an error: out"),
        (None, "broke off"),
    ],
    ids=["hangs", "dies", "reports an error", "ends without a reason"],
)
def test_a_broken_answer_is_a_sentence(make, end, said, monkeypatch):
    server = make()
    path = next(iter(server.answers))
    whole = server.answers[path]
    server.answers[path] = [*whole[:3], *([end] if end else [])]
    with pytest.raises(PlaygroundError, match=said):
        traced(server, monkeypatch)


def test_engines_are_compared_by_what_each_counts(monkeypatch):
    servers = (stand_in.llama_server, stand_in.sglang, stand_in.lm_studio, stand_in.ollama)
    shown = engines.table([[traced(server(), monkeypatch)] for server in servers])
    llama, sglang, studio, ollama = (row[1:] for row in shown.rows)
    assert llama == ("9", "3", "9", "5", "2.67", "+0%", "67%", "67%", "33%", "1 of 1")
    assert sglang[:-1] == llama[:-1], "the same steps"
    assert studio == ("9", "–", "9", "5", "–", "–", "–", "–", "–", "1 of 1")
    assert ollama[2:4] == ("–", "–")


def test_sglang_s_counters_are_watched():
    counts = counts_of('sglang:num_running_reqs{a="b"} 2\nsglang:generation_tokens_total 40\nsglang:num_queue_reqs 1\n')
    assert (counts.tokens, counts.running, counts.waiting, counts.drafts) == (40, 2, 1, None)
