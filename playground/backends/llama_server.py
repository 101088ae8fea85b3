"""llama.cpp's HTTP server. With `timings_per_token` each token's event carries the counts so far of drafted and
accepted tokens, from which the rounds follow.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from playground.backends.http import Event, Http
from playground.backends.server import UNREPORTED, Piece, ServerBackend, ServerRun, check_room, round_of
from playground.errors import PlaygroundError, check
from playground.lane import Request
from playground.trace import Finish, Round

ENDS: dict[str, Finish] = {"eos": "eos", "word": "eos", "limit": "length"}
REPEATED = "The tide comes in, the tide goes out, and the gulls cry over the harbour wall. " * 6  # lookups draft here
SEEDS = 2**32 - 1  # which itself means a random seed
CONTEXT = 2**20  # tokens that the repetition penalty looks back: all of them


class LlamaServer(ServerBackend):
    """Raises:
    PlaygroundError: by the constructor, if the server is not what it should be; see `Http`.
    """

    kind = "llama-server"
    how_to_speculate = "Start llama-server with --spec-type, such as --spec-type ngram-simple, or with a draft model."

    def __init__(self, http: Http, model: str) -> None:
        super().__init__(http)
        self.model = model
        self._props = http.get("/props")
        self.drafter, self.obeys_lookahead = self._probe()

    def encode(self, request: Request) -> list[int]:
        text = request.text
        if request.chat_template:
            text = self.http.post("/apply-template", {"messages": request.messages})["prompt"]
        ids = self.http.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        check(bool(ids), "The server makes no tokens of this prompt. Write something else.")
        check_room(self.name, len(ids), self._props["default_generation_settings"].get("n_ctx"))
        return ids

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        lookahead = run.lane.lookahead if self.obeys_lookahead else None
        body = _body(run.request, list(run.prompt_ids))
        if lookahead:
            body["speculative.n_max"] = lookahead
        end: dict[str, Any] = {}
        yield from rounds(self.http.stream("/completion", body), end, lookahead)
        if not end:
            raise PlaygroundError(
                f"{self.name} broke off in the middle of an answer. It may have crashed: its log says more."
            )
        context = end.get("truncated") or (
            end["stop_type"] == "limit" and end["tokens_predicted"] < run.request.max_new_tokens
        )
        run.finish = "context" if context else ENDS[end["stop_type"]]

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"llama.cpp": self._props.get("build_info", "unknown")}, self._props.get("model_ftype")

    def _probe(self) -> tuple[str, bool]:
        """What the server drafts with, and whether it obeys a request's lookahead: a build that does drafts one token a
        step here."""
        body = _body(Request(REPEATED, max_new_tokens=8), REPEATED) | {"speculative.n_max": 1}
        end: dict[str, Any] = {}
        drafts = [len(round_.drafted) for round_ in rounds(self.http.stream("/completion", body), end)]
        method = end.get("generation_settings", {}).get("speculative.types")
        drafter = method or (UNREPORTED if any(drafts) else "none")
        return drafter, max(drafts) == 1


def _body(request: Request, prompt: list[int] | str) -> dict[str, Any]:
    """What asks for the request's distribution, as transformers defines it: penalty, temperature, top-k, top-p in this
    order, and nothing else. The prompt cache is off, so that every run has its prefill."""
    return {
        "prompt": prompt,
        "n_predict": request.max_new_tokens,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": 0.0,
        "repeat_penalty": request.repetition_penalty,
        "repeat_last_n": CONTEXT,
        "samplers": ["penalties", "temperature", "top_k", "top_p"],
        "seed": request.seed % SEEDS,
        "cache_prompt": False,
        "stream": True,
        "return_tokens": True,
        "timings_per_token": True,
    }


def rounds(events: Iterable[Event], end: dict[str, Any], lookahead: int | None = None) -> Generator[Round, None, None]:
    """The verify steps of an answer. `end` is filled with its last event.

    A step's tokens come one event each, and already the first has the counts after the step. A token that ends inside
    a character has no event, and its id remains unknown.
    """
    pieces: list[Piece] = []
    tokens = drafts = accepts = 0  # so far
    drafted = accepted = 0  # in this step
    start_s = end_s = 0.0
    for end_s, data in events:
        timings = data.get("timings")
        if timings is None:
            raise PlaygroundError("This llama-server reports no timings of tokens. Use a build of 2025 or later.")
        unseen = [Piece(None, "")] * (timings["predicted_n"] - tokens - len(data["tokens"]))
        for piece in [*unseen, *(Piece(id_, data["content"], not data["content"]) for id_ in data["tokens"])]:
            if not pieces:
                drafted, accepted = timings.get("draft_n", 0) - drafts, timings.get("draft_n_accepted", 0) - accepts
                drafts, accepts = drafts + drafted, accepts + accepted
            pieces.append(piece)
            if len(pieces) > accepted:
                yield round_of(pieces, drafted, accepted, start_s, end_s, lookahead)
                pieces, start_s = [], end_s
        tokens = timings["predicted_n"]
        if data["stop"]:
            end.update(data)
            break
    if end and pieces:  # an accepted token ended the text
        yield round_of(pieces, drafted, accepted, start_s, end_s, lookahead)
