"""Model servers that really speculate, with a tiny model behind them, exactly or by a fault that servers have had.

Model and drafter are tables: what two tiny Llamas say after each single token. They answer without a socket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from tests.backends.stand_in import listed
from tests.tiny import small_llama

Fault = Literal[
    "", "draft's p", "no residual", "temperature twice", "top-p after", "greedy drafts", "bonus from drafter",
    "told as drawn", "typical", "the p before",
]  # fmt: skip
Logprobs = Literal["raw", "processed", "rounded", "wrong", "none"]
AHEAD = 3
Step = tuple[list[int], int]  # its tokens, and how many were drafted


class Speculative:
    """A llama-server. `fault`: of its verification, which one token alone never meets. `heat`: by how much the
    temperature that it samples at, alone too, is above the one of the request. `logprobs`: what it reports as such.
    `prompt`: the ids that it reads any prompt as. `drafts`: whether it speculates; `every`: and at one token in how
    many. `within`: the ids of tokens that end inside a character, modulo 3."""

    within: int | None = None

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        fault: Fault = "",
        logprobs: Logprobs = "raw",
        prompt: tuple[int, ...] = (40, 41, 42),
        drafts: bool = True,
        every: int = 1,
        heat: float = 1.0,
    ) -> None:
        self.fault, self.logprobs, self.prompt, self.drafts, self.every = fault, logprobs, prompt, drafts, every
        self.heat = heat
        self.target, self.drafter = (_table(tokenizer, spread) for spread in (0.3, 0.2))

    def respond(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        answer = self.answer(request.url.path, body)
        if answer is None:
            return httpx.Response(404, stream=httpx.ByteStream(b'{"error": "File Not Found"}'))
        if not isinstance(answer, list):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            return httpx.Response(200, stream=httpx.ByteStream(text.encode()))
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in answer)
        return httpx.Response(200, stream=httpx.ByteStream(events.encode()))

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        routes = {
            "/v1/models": listed(owned_by="llamacpp"),
            "/health": {},
            "/props": {"default_generation_settings": {"n_ctx": 2048}},
            "/apply-template": {"prompt": "x"},
            "/tokenize": {"tokens": self.prompt},
        }
        if path != "/completion":
            return routes.get(path)
        ids = body["prompt"] if isinstance(body["prompt"], list) else [*self.prompt]
        how = SimpleNamespace(**{name: body[name] for name in ("temperature", "top_k", "top_p", "seed")})
        if body["stream"]:
            return self._events(ids, how, body["n_predict"])
        id_, best = self.one(ids, how)
        if id_ % 3 == self.within and not body.get("logit_bias"):
            best = []
        known = [{"top_logprobs": [{"id": token, "logprob": logprob} for token, logprob in best]}] if best else []
        return {"content": f" {id_}", "tokens": [id_], "completion_probabilities": known}

    def _events(self, ids: list[int], how: Any, n: int) -> list[Any]:
        events, n_tokens, drafts, accepts = list[Any](), 0, 0, 0
        for tokens, drafted in self.steps(ids, how, n):
            drafts, accepts = drafts + drafted, accepts + len(tokens) - 1
            for id_ in tokens:
                n_tokens += 1
                timings = {"predicted_n": n_tokens, "draft_n": drafts, "draft_n_accepted": accepts}
                events.append({"content": f" {id_}", "tokens": [id_], "stop": False, "timings": timings})
        settings = {"speculative.types": "draft-simple" if self.drafts else ""}
        last = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": n_tokens}
        return [*events, {**last, "timings": events[-1]["timings"], "generation_settings": settings}]

    def one(self, ids: list[int], how: Any) -> tuple[int, list[tuple[int, float]]]:
        """The next token, and the log-probabilities of the likeliest."""
        table = {"wrong": self.drafter, "none": None}.get(self.logprobs, self.target)
        drawn = self._plain(np.random.default_rng(how.seed), ids[-1], how)
        if table is None:
            return drawn, []
        given = how if self.logprobs == "processed" else SimpleNamespace(temperature=1.0, top_k=0, top_p=1.0)
        p = _law(table, ids[-1], given)
        best = np.argsort(-p)[:20]
        known = [(int(id_), float(np.log(max(p[id_], 1e-30)))) for id_ in best]
        if self.logprobs == "rounded":
            known = [(id_, round(logprob * 2) / 2) for id_, logprob in known]
        return drawn, known

    def steps(self, ids: list[int], how: Any, n: int) -> Iterator[Step]:
        """Yields verify steps of n tokens in all, the prefill first."""
        rng = np.random.default_rng(how.seed)
        tokens, drafted = [self._plain(rng, ids[-1], how)], 0
        while n:
            tokens, n = tokens[:n], n - len(tokens[:n])
            yield tokens, drafted
            last = tokens[-1]
            drafts = self.drafts and n % self.every == 0
            tokens, drafted = self._step(rng, last, how) if drafts else ([self._plain(rng, last, how)], 0)

    def _plain(self, rng: np.random.Generator, last: int, how: Any) -> int:
        return _drawn(rng, _law(self.target, last, how, self.heat))

    def _step(self, rng: np.random.Generator, last: int, how: Any) -> Step:
        fault = self.fault if bool(how.temperature) != (self.fault == "greedy drafts") else ""
        judged, heat = how, self.heat
        if fault == "temperature twice":
            heat *= how.temperature
        if fault == "top-p after":
            judged = SimpleNamespace(**{**vars(how), "top_p": 1.0})
        tokens: list[int] = []
        before = last
        for _ in range(AHEAD):
            q, p = (_law(of, last, judged, heat) for of in (self.drafter, self.target))
            if fault == "the p before":
                p = _law(self.target, before, judged, heat)
            x = _drawn(rng, q)
            if fault == "greedy drafts":  # a drafter that is wrong, and believed
                x = int(np.argsort(-self.drafter.logits[last])[1])
            elif fault == "told as drawn":
                x = int(q.argmax())
            kept = fault in ("draft's p", "greedy drafts") or rng.random() < p[x] / q[x]
            if fault == "typical":
                kept = p[x] > 0.2
            if not kept:
                left = p if fault in ("no residual", "typical") else np.maximum(p - q, 0)
                law = _nucleus(left / left.sum(), how.top_p if fault == "top-p after" else 1.0)
                return [*tokens, _drawn(rng, law)], AHEAD
            tokens.append(x)
            before, last = last, x
        if fault == "bonus from drafter":
            return [*tokens, _drawn(rng, _law(self.drafter, last, how))], AHEAD
        return [*tokens, self._plain(rng, last, how)], AHEAD


class Behind:
    """Servers by the ports of their addresses, and a clock that goes on whenever it is read."""

    def __init__(self, by_port: dict[int, Speculative]) -> None:
        self.by_port, self._ticks = by_port, count()

    @property
    def now(self) -> float:
        return next(self._ticks) / 1000

    def respond(self, request: httpx.Request) -> httpx.Response:
        return self.by_port[request.url.port or 80].respond(request)


class SpeculativeVllm(Speculative):
    """The same as vLLM answers."""

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        routes = {
            "/v1/models": listed(owned_by="vllm"),
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/tokenize": {"tokens": self.prompt, "max_model_len": 2048},
        }
        if path == "/metrics":
            return "vllm:generation_tokens_total 0\n" + "vllm:spec_decode_num_drafts_total 0\n" * self.drafts
        if path != "/v1/completions":
            return routes.get(path)
        how = SimpleNamespace(**{name: body[name] for name in ("temperature", "top_k", "top_p", "seed")})
        if "prompt_logprobs" in body:
            return {"choices": [{"prompt_logprobs": []}]}
        if not body.get("stream"):
            id_, best = self.one(body["prompt"], how)
            known = {"top_logprobs": [{f"token_id:{token}": logprob for token, logprob in best}]} if best else None
            return {"choices": [{"text": f" {id_}", "token_ids": [id_], "logprobs": known}]}
        steps = [*self.steps(body["prompt"], how, body["max_tokens"])]
        choices = [{"text": "x", "token_ids": tokens, "finish_reason": None} for tokens, _ in steps]
        choices[-1]["finish_reason"] = "length"
        judged = [(len(tokens) - 1, drafted) for tokens, drafted in steps if drafted]
        counted = {
            "num_spec_steps": len(judged),
            "per_step_accepted": [accepted for accepted, _ in judged],
            "per_step_drafted": [drafted for _, drafted in judged],
        }
        last = {"choices": [], "metrics": {"speculative_decoding": counted}}
        return [*({"choices": [each]} for each in choices), last]


class SpeculativeChat(Speculative):
    """The same as a server with OpenAI's API alone answers: text, and the number of tokens."""

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/chat/completions":
            return {"/v1/models": listed(owned_by="somebody")}.get(path)
        how = SimpleNamespace(**{"top_k": 0, **body})
        ids = [id_ for tokens, _ in self.steps([*self.prompt], how, body["max_tokens"]) for id_ in tokens]
        chunks = [{"choices": [{"delta": {"content": f" {id_}"}, "finish_reason": None}]} for id_ in ids]
        end = {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": {"completion_tokens": len(ids)}}
        return [*chunks, end]


class Table:
    """The logits after each token alone, (vocabulary, vocabulary), and the laws made of them so far."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits, self.laws = logits, dict[tuple[Any, ...], np.ndarray]()


@cache
def _table(tokenizer: PreTrainedTokenizerBase, spread: float) -> Table:
    model = small_llama(tokenizer, initializer_range=spread)
    with torch.inference_mode():
        return Table(model(torch.arange(len(tokenizer))[:, None]).logits[:, -1].double().numpy())


def _softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max())
    return p / p.sum()


def _law(table: Table, last: int, how: Any, heat: float = 1.0) -> np.ndarray:
    key = last, how.temperature * heat, how.top_k, how.top_p
    if key not in table.laws:
        table.laws[key] = _filtered(table.logits[last], *key[1:])
    return table.laws[key]


def _filtered(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    if not temperature:
        return np.eye(len(logits))[logits.argmax()]
    p = _softmax(logits / temperature)
    if top_k:
        p[np.argsort(-p)[top_k:]] = 0
    return _nucleus(p / p.sum(), top_p)


def _nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    order = np.argsort(-p)
    kept = order[np.cumsum(p[order]) - p[order] < top_p]
    law = np.zeros_like(p)
    law[kept] = p[kept]
    return law / law.sum()


def _drawn(rng: np.random.Generator, law: np.ndarray) -> int:
    return int(rng.choice(len(law), p=law))
