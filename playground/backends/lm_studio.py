"""LM Studio over its own API, which counts the draft tokens of an answer. The draft model is chosen by each request.

https://lmstudio.ai/docs/developer/rest/endpoints and the notes of release 0.3.10
"""

from __future__ import annotations

from typing import Any

from playground.backends.http import Http
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerRun
from playground.trace import Totals


class LmStudio(OpenAiServer):
    """The counts come in `stats` or, since 0.4, in `usage`; the verify steps are not reported."""

    kind = "LM Studio"
    owner = "organization_owner"
    asked_draft = "a draft model"
    how_to_speculate = "Add #DRAFT-MODEL to its address."
    chat = "/api/v0/chat/completions"
    completion = "/api/v0/completions"

    def __init__(self, http: Http, model: str) -> None:
        super().__init__(http, model)
        if http.draft:
            self.drafter = http.draft

    def body(self, run: ServerRun) -> dict[str, Any]:
        draft = {"draft_model": self.http.draft} if self.http.draft else {}
        return super().body(run) | draft

    def totals(self, end: dict[str, Any]) -> Totals:
        counted = end.get("usage", {}) | end.get("stats", {})
        return Totals(
            tokens=counted.get("completion_tokens"),
            drafted=counted.get("total_draft_tokens_count"),
            accepted=counted.get("accepted_draft_tokens_count"),
        )
