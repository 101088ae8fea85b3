"""Any server with OpenAI's chat API, of which only the text and its timing are known.

The rounds of such a lane are the pieces of the answer as they arrived. The number of tokens is what the server reports
(`usage`); drafted and accepted tokens are unknown, and nothing is derived from the sizes or times of the pieces.

https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, ClassVar

from playground.backends.server import UNKNOWN, Piece, ServerBackend, ServerRun, chat_of, reused_of, round_of, stop_of
from playground.errors import check
from playground.lane import Request
from playground.trace import Finish, Round, Totals

PIECES = "This server does not report verify steps: the rounds of its lane are the pieces of text as they arrived."
BEYOND = (
    "Top-k, min-p and the repetition penalty are not part of OpenAI's API: whether the server follows them is unknown."
)

PENALTIES = ("presence_penalty", "frequency_penalty")  # by OpenAI's names
EITHER = "This server does not say whether an end of text or a stop string ended the answer: it is taken for the first."


class OpenAiServer(ServerBackend):
    """An OpenAI-compatible server. Subclasses read more: what a server reports of its drafts."""

    kind = "OpenAI-compatible server"
    how_to_speculate = "Start it with a drafter."
    health = "/v1/models"
    drafter = UNKNOWN
    own_prefill = False
    chat: ClassVar[str] = "/v1/chat/completions"
    completion: ClassVar[str] = "/v1/completions"

    def encode(self, request: Request) -> None:
        """Returns None, because such a server does not tokenise for clients. Requests that it cannot serve are refused
        here, before anything runs."""
        check(
            request.constraint in ("", "json_schema"),
            f"{self.kind} keeps an answer to a JSON schema only, not to the {request.constraint}. Leave it out.",
        )

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        reason, start_s, end = "", 0.0, dict[str, Any]()
        run.notes.append(PIECES)
        if self.goes_beyond(run.request):
            run.notes.append(BEYOND)
        for end_s, data in self.http.stream(self.path(run.request), self.body(run)):
            end |= {key: value for key, value in data.items() if value}
            for text, ended in self.parts(data):
                reason = ended or reason
                if text:
                    yield round_of([Piece(None, text)], 0, 0, start_s, end_s)
                    start_s = end_s
        self.check_whole(bool(reason))
        run.totals = self.totals(end)
        run.reused = reused_of(self.cached(end))
        run.finish = _finish(reason, run.totals.tokens, run.request.max_new_tokens)
        if run.request.stops and self.takes_stops and run.finish == "eos":
            run.notes.append(EITHER)

    def software(self) -> tuple[dict[str, str], str | None]:
        return {}, None

    def path(self, request: Request) -> str:
        """Returns the path to which a request is sent."""
        return self.chat if request.chat_template else self.completion

    def body(self, run: ServerRun) -> dict[str, Any]:
        """Returns the body of a run's request."""
        request = run.request
        prompt = chat_of(request) if request.chat_template else {"prompt": request.text}
        return {
            "model": self.model,
            **prompt,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.turn_seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name in PENALTIES if (value := getattr(request, name))},
            **(stop_of(request) if self.takes_stops else {}),
            **self.beyond(request),
            **_structured(request),
        }

    def goes_beyond(self, request: Request) -> bool:
        """Returns whether a request has settings outside OpenAI's API."""
        return bool(self.beyond(request))

    def beyond(self, request: Request) -> dict[str, Any]:
        """Returns the settings outside OpenAI's API. They are sent only where they change something, because a server
        may refuse them."""
        settings = {"top_k": request.top_k, "min_p": request.min_p} if not request.greedy else {}
        settings["repetition_penalty"] = request.repetition_penalty if request.repetition_penalty != 1 else 0
        return {name: value for name, value in settings.items() if value}

    def parts(self, data: dict[str, Any]) -> Generator[tuple[str, str], None, None]:
        """Yields the texts of an event, each with the reason for the end of the answer, or ""."""
        for choice in data.get("choices") or ():
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            text = thought + (delta.get("content") or "") + _calls(delta) + (choice.get("text") or "")
            yield text, choice.get("finish_reason") or ""

    def totals(self, end: dict[str, Any]) -> Totals:
        """Reads the counts of the whole answer from its last events."""
        return Totals(end.get("usage", {}).get("completion_tokens"))

    def cached(self, end: dict[str, Any]) -> int | None:
        """Returns how many prompt tokens came from the server's cache; None if it does not report that."""
        return (end.get("usage", {}).get("prompt_tokens_details") or {}).get("cached_tokens")


def _calls(delta: dict[str, Any]) -> str:
    """Returns the text of tool calls."""
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)


def _structured(request: Request) -> dict[str, Any]:
    if not request.json_schema:
        return {}
    schema = {"name": "answer", "schema": json.loads(request.json_schema), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _finish(reason: str, tokens: int | None, most: int) -> Finish:
    if reason != "length":
        return "eos"
    return "context" if tokens is not None and tokens < most else "length"
