"""Ollama over its own API, which takes a request's lookahead and reports nothing of drafts.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from playground.backends.http import Http
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerRun, chat_of, stop_of
from playground.errors import PlaygroundError
from playground.lane import Request
from playground.trace import Totals

OFF = "off"
NAMES = {  # the server's, by the setting's
    "max_new_tokens": "num_predict",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class Ollama(OpenAiServer):
    """Its answers are JSON lines, with the number of tokens in the last. A model may have a drafter or not, and it does
    not say which: with #off no tokens are drafted, otherwise as many as the lane's lookahead, if it has one."""

    kind = "Ollama"
    asked_draft = "no draft (#off)"
    how_to_speculate = "Leave #off out of its address, and take a model with a drafter."
    health = "/api/version"
    obeys_lookahead = True
    counts_prompt = True
    chat = "/api/chat"
    completion = "/api/generate"

    def __init__(self, http: Http, model: str) -> None:
        super().__init__(http, model)
        self._version = http.get(self.health)["version"]
        if http.draft == OFF:
            self.drafter, self.obeys_lookahead = "none", False

    @classmethod
    def is_at(cls, http: Http, listing: Sequence[Mapping[str, Any]]) -> bool:
        """The owner that it names is who published the model."""
        with suppress(PlaygroundError):
            return "version" in http.get(cls.health)
        return False

    def body(self, run: ServerRun) -> dict[str, Any]:
        request = run.request
        prompt = chat_of(request) if request.chat_template else {"prompt": request.text, "raw": True}
        options = {theirs: getattr(request, ours) for ours, theirs in NAMES.items()}
        options |= {"draft_num_predict": run.lane.lookahead if self.obeys_lookahead else 0, "repeat_last_n": -1}
        options |= stop_of(request)
        schema = {"format": json.loads(request.json_schema)} if request.json_schema else {}
        return {"model": self.model, **prompt, "stream": True, "options": options, **schema}

    def goes_beyond(self, request: Request) -> bool:
        return False

    def parts(self, data: dict[str, Any]) -> Generator[tuple[str, str], None, None]:
        said = data.get("message") or {}
        text = (said.get("thinking") or "") + (said.get("content") or "") + (data.get("response") or "")
        yield text, (data.get("done_reason") or "stop") if data.get("done") else ""

    def totals(self, end: dict[str, Any]) -> Totals:
        return Totals(end.get("eval_count"))

    def cached(self, end: dict[str, Any]) -> int | None:
        return None

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"ollama": self._version}, None
