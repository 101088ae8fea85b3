"""Model servers of known speed and known counts, for testing what the client measures of them.

They answer without a socket, and their clock is the client's: a wait takes no time, and a figure is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx

from playground.backends import http

URL = "http://stand-in:1234"


class Step(NamedTuple):
    """A verify step: the seconds it takes, and the draft tokens that it judged and accepted."""

    seconds: float
    drafted: int = 0
    accepted: int = 0


# The prefill, a draft that is accepted whole, one that is refused, one in between: 1 + 4 + 1 + 3 tokens in 1.0 s.
STEPS = (Step(0.25), Step(0.125, 3, 3), Step(0.375, 3, 0), Step(0.25, 3, 2))
TEXTS = [f" word{i}" for i in range(sum(step.accepted + 1 for step in STEPS))]


class Wait(NamedTuple):
    """In an answer: seconds without an event."""

    seconds: float


class _Stream(httpx.SyncByteStream):
    def __init__(self, server: StandIn, events: Sequence[Any], lines: str) -> None:
        self._server, self._events, self._lines = server, events, lines

    def __iter__(self) -> Iterator[bytes]:
        for event in self._events:
            if isinstance(event, Wait):
                self._server.now += event.seconds
            elif isinstance(event, Exception):
                raise event
            else:
                yield (self._lines % json.dumps(event)).encode()


class StandIn:
    """`routes`: JSON or text by path. `answers`: events and waits by path; `lines`: how an event is written."""

    def __init__(self, routes: dict[str, Any], answers: dict[str, Sequence[Any]], lines: str = "data: %s\n\n") -> None:
        self.routes, self.answers, self.lines = routes, answers, lines
        self.now = 1000.0
        self.asked: list[tuple[str, Any]] = []

    def respond(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        path = request.url.path
        self.asked.append((path, body))
        if path in self.answers:
            return httpx.Response(200, stream=_Stream(self, self.answers[path], self.lines))
        answer = self.routes.get(path, {"error": "File Not Found"})
        text = answer if isinstance(answer, str) else json.dumps(answer)
        status = 200 if path in self.routes else 404
        return httpx.Response(status, stream=httpx.ByteStream(text.encode()))  # not read yet, as a real one comes

    def body(self, path: str) -> Any:
        """The last that was asked of a path."""
        return next(body for at, body in reversed(self.asked) if at == path)


@contextmanager
def standing_in(server: StandIn, monkeypatch: Any) -> Iterator[StandIn]:
    """What is asked of any address is answered by the server, and the client's clock is its clock."""
    client = httpx.Client
    transport = httpx.MockTransport(server.respond)
    with monkeypatch.context() as patch:
        patch.setattr(http.httpx, "Client", lambda **options: client(**{**options, "transport": transport}))
        patch.setattr(http, "time", SimpleNamespace(monotonic=lambda: server.now))
        yield server


def listed(**model: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "tiny", "object": "model", **model}]}


def by_token() -> list[tuple[Step, list[str]]]:
    """Each step with the texts of its tokens."""
    texts = iter(TEXTS)
    return [(step, [next(texts) for _ in range(step.accepted + 1)]) for step in STEPS]


def chat_events(**last: Any) -> list[Any]:
    """OpenAI's stream with a role first, an event a step, and what a server says at the end."""
    events: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    for step, texts in by_token():
        events += [Wait(step.seconds), {"choices": [{"delta": {"content": "".join(texts)}, "finish_reason": None}]}]
    return [*events, {"choices": [{"delta": {}, "finish_reason": "length"}]}, {"choices": [], **last}]


def plain(**last: Any) -> StandIn:
    """A server of which nothing is known."""
    last = last or {"usage": {"completion_tokens": len(TEXTS)}}
    return StandIn({"/v1/models": listed(owned_by="somebody")}, {"/v1/chat/completions": chat_events(**last)})


def lm_studio() -> StandIn:
    counts = {"total_draft_tokens_count": 9, "accepted_draft_tokens_count": 5, "rejected_draft_tokens_count": 4}
    events = chat_events(usage={"completion_tokens": len(TEXTS)}, stats=counts)
    return StandIn({"/v1/models": listed(owned_by="organization_owner")}, {"/api/v0/chat/completions": events})


def mlx_vlm(drafted: int = 9, accepted: int = 5) -> StandIn:
    counts = {"draft_rounds": 3, "draft_n": drafted, "draft_n_accepted": accepted}
    timings = {"predicted_n": len(TEXTS), "draft_kind": "mtp", **counts}
    events = chat_events(usage={"completion_tokens": len(TEXTS)}, timings=timings)
    return StandIn(
        {"/v1/models": listed(created=1, loaded=True), "/health": {"status": "healthy"}},
        {"/v1/chat/completions": events},
    )


def ollama() -> StandIn:
    events: list[Any] = []
    for step, texts in by_token():
        events += [Wait(step.seconds), {"message": {"role": "assistant", "content": "".join(texts)}, "done": False}]
    events.append({"message": {"content": ""}, "done": True, "done_reason": "length", "eval_count": len(TEXTS)})
    routes = {"/v1/models": listed(owned_by="library"), "/api/version": {"version": "0.32.14"}}
    return StandIn(routes, {"/api/chat": events}, lines="%s\n")


def by_ids(finish: str, **last: Any) -> list[Any]:
    """A stream of completions with token ids, an event a step, as vLLM and SGLang send it."""
    events, ids = list[Any](), iter(range(100, 200))
    for step, texts in by_token():
        choice = {"text": "".join(texts), "token_ids": [next(ids) for _ in texts], "finish_reason": None}
        events += [Wait(step.seconds), {"choices": [choice]}]
    events[-1]["choices"][0]["finish_reason"] = finish
    return [*events, {"choices": [], **last}]


def sglang() -> StandIn:
    counts = {"spec_verify_ct": 3, "spec_num_correct_drafts": 5, "spec_num_proposed_drafts": 9}
    info = {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4, "dtype": "auto"}
    return StandIn(
        {
            "/v1/models": listed(owned_by="sglang"),
            "/health": "",
            "/server_info": info,
            "/tokenize": {"tokens": [1, 2, 3], "max_model_len": 2048},
        },
        {"/v1/completions": by_ids("length", sglext={"spec_tokens_details": counts})},
    )


def vllm() -> StandIn:
    steps = [step for step in STEPS if step.drafted]
    counted = {
        "num_spec_steps": len(steps),
        "per_step_accepted": [step.accepted for step in steps],
        "per_step_drafted": [step.drafted for step in steps],
    }
    metrics = "vllm:spec_decode_num_drafts_total 0\nvllm:generation_tokens_total 0\n"
    return StandIn(
        {
            "/v1/models": listed(owned_by="vllm"),
            "/health": "",
            "/version": {"version": "0.32.0"},
            "/metrics": metrics,
            "/tokenize": {"tokens": [1, 2, 3], "max_model_len": 2048},
        },
        {"/v1/completions": by_ids("length", metrics={"speculative_decoding": counted})},
    )


def llama_server() -> StandIn:
    events, count, drafts, accepts = list[Any](), 0, 0, 0
    for step, texts in by_token():
        events.append(Wait(step.seconds))
        drafts, accepts = drafts + step.drafted, accepts + step.accepted
        for text in texts:
            count += 1
            timings = {"predicted_n": count, "draft_n": drafts, "draft_n_accepted": accepts}
            events.append({"content": text, "tokens": [count], "stop": False, "timings": timings})
    settings = {"speculative.types": "draft-eagle3"}
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": count}
    events.append({**last, "timings": events[-1]["timings"], "generation_settings": settings})
    return StandIn(
        {
            "/v1/models": listed(owned_by="llamacpp"),
            "/health": "",
            "/props": {"default_generation_settings": {"n_ctx": 2048}},
            "/apply-template": {"prompt": "x"},
            "/tokenize": {"tokens": [1, 2, 3]},
        },
        {"/completion": events},
    )
