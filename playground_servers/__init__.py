"""SGLang, LM Studio, mlx-vlm and Ollama as backends, which are added to the playground over an entry point.

- SGLang has vLLM's requests and answers, and counts of its own. A chunk has the output of one verify step, and after
  the prefill each step drafts. The last chunk counts the steps and the draft tokens of the whole answer
  (`return_spec_tokens_details`). Source: SGLang 0.5.23, entrypoints/openai/protocol.py,
  managers/tokenizer_manager.py.
- LM Studio's own API counts the draft tokens of an answer. Each request chooses the draft model.
  https://lmstudio.ai/docs/developer/rest/endpoints and the notes of release 0.3.10.
- mlx-vlm has OpenAI's API, with llama.cpp's names for the counts of a whole answer. Source: mlx-vlm 0.7.10,
  server/schemas.py (GenerationTimings), speculative/common.py (speculative_stats_since).
- Ollama's own API takes a request's lookahead and reports nothing of drafts.
  https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from playground.backends.http import Http
from playground.backends.llama_server import NAMES as NAMES_IN_LLAMA
from playground.backends.openai import OpenAiServer
from playground.backends.server import CounterNames, ServerBackend, ServerRun, chat_of, stop_of
from playground.backends.vllm import PLAIN, Chunk, Step, VllmServer, estimated
from playground.errors import check
from playground.format import count
from playground.lane import Request
from playground.metrics.load import Counts
from playground.trace import Round, Totals

MERGED = (
    "Chunks held several verify steps: the counts are SGLang's, and which step accepted how many is an assumption. "
    "Start it with --stream-interval 1."
)
RELAXED = (
    "While it drafts, SGLang counts the answer up to the last verify step alone for presence, frequency and repetition "
    "penalty: other tokens may come out than without drafts."
)
UNCOUNTED = "SGLang did not count the drafts of this request: rejected tokens are missing in its rounds."


class SglangServer(VllmServer):
    """An SGLang server."""

    kind = "SGLang"
    owner = "sglang"
    counter_names = CounterNames("sglang:", "generation_tokens_total", "num_running_reqs", "num_queue_reqs")
    launch = None
    how_to_speculate = "Start SGLang with --speculative-algorithm, such as --speculative-algorithm NGRAM."
    details = False
    min_p_first = counts_past_stop = False

    def __init__(self, http: Http, model: str) -> None:
        ServerBackend.__init__(self, http, model)
        self._info = http.get("/server_info")
        self.drafter = (self._info.get("speculative_algorithm") or "none").lower()
        drafts = self._info.get("speculative_num_draft_tokens")  # the tokens of a verify pass, the last one included
        self._lookahead = drafts - 1 if drafts and self.drafter != "none" else None

    def encode(self, request: Request) -> list[int]:
        check(request.constraint != "grammar", "SGLang takes JSON schemas and expressions, and no Lark grammar.")
        return super().encode(request)

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        if run.request.penalised and self.drafter != "none":
            run.notes.append(RELAXED)
        yield from super().answer(run)

    def _steps(self, run: ServerRun, chunks: list[Chunk], end: dict[str, Any], before: Counts | None) -> list[Step]:
        if self.drafter == "none":
            return [PLAIN] * sum(len(chunk.pieces) for chunk in chunks)
        counted = end.get("sglext", {}).get("spec_tokens_details") or {}
        steps, drafted, accepted = (
            counted.get(f"spec_{name}", 0) for name in ("verify_ct", "num_proposed_drafts", "num_correct_drafts")
        )
        if not steps:
            run.notes.append(UNCOUNTED)
            return []
        sizes = [len(chunk.pieces) for chunk in chunks[1:]]
        if len(sizes) == steps and 0 <= accepted - sum(size - 1 for size in sizes) < drafted // steps + 1:
            return [Step(size - 1, drafted // steps) for size in sizes]  # the end may cut the last step's output
        run.notes.append(MERGED)
        return estimated(chunks, steps, drafted)

    def alone(self, ids: Sequence[int], request: Request, *, fresh: bool = False) -> None:
        """Returns None: SGLang's log-probabilities in this API are by text, which several tokens may share."""

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"sglang": self._info["version"]}, self._info.get("dtype")

    def _body(self, request: Request, prompt_ids: Sequence[int]) -> dict[str, Any]:
        body = super()._body(request, prompt_ids)
        body.pop("structured_outputs", None)
        body["top_k"] = request.top_k or -1  # 0 is refused
        held = {request.constraint: getattr(request, request.constraint)} if request.constraint else {}
        return body | {"return_spec_tokens_details": True, **held}


class LmStudio(OpenAiServer):
    """An LM Studio server. The counts come in `stats` or, since 0.4, in `usage`; it does not report the verify
    steps."""

    kind = "LM Studio"
    owner = "organization_owner"
    draft_option = "a draft model"
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


LOOK_BACK = 2**20  # tokens: the whole context


class MlxVlm(OpenAiServer):
    """An mlx-vlm server. It counts the rounds that drafted over all requests of a batch, which is right if it answers
    one at a time. It counts a round before the end of the answer cuts it, so that tokens which were not sent count as
    accepted."""

    kind = "mlx-vlm"
    how_to_speculate = "Start mlx_vlm.server with --draft-model."
    health = "/health"
    takes_stops = False  # its ChatRequest has no such field

    @classmethod
    def is_at(cls, http: Http, listing: Sequence[Mapping[str, Any]]) -> bool:
        """Recognises the server: it names no owner, and says which models are loaded."""
        return "loaded" in listing[0] and "owned_by" not in listing[0]

    @classmethod
    def models(cls, listing: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Returns the loaded models if there are any; the server also lists those that it could load."""
        return super().models([it for it in listing if it["loaded"]] or listing)

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        yield from super().answer(run)
        said = run.totals
        if not said or said.tokens is None or said.accepted is None or said.drafted is None:
            return
        cut = said.accepted - max(0, said.tokens - 1)  # the first token is the prefill's
        if cut > 0:
            run.totals = replace(said, drafted=said.drafted - cut, accepted=said.accepted - cut)
            run.notes.append(
                f"The server counted {count(said.accepted, 'accepted draft token')} in an answer of "
                f"{count(said.tokens, 'token')}: the end of the answer cut off the last draft. What lies beyond it, "
                f"{count(cut, 'token')}, is left out of what was drafted and accepted."
            )

    def body(self, run: ServerRun) -> dict[str, Any]:
        """Adds the look-back of the penalties, which is 20 tokens by default."""
        body = super().body(run)
        windows = [name.replace("penalty", "context_size") for name in body if name.endswith("_penalty")]
        return body | dict.fromkeys(windows, LOOK_BACK)

    def totals(self, end: dict[str, Any]) -> Totals:
        timings = end.get("timings", {})
        rounds = timings.get("draft_rounds")
        return Totals(
            tokens=end.get("usage", {}).get("completion_tokens"),
            passes=None if rounds is None else rounds + 1,  # the prefill gives a token, too
            drafted=timings.get("draft_n"),
            accepted=timings.get("draft_n_accepted"),
        )


OFF = "off"
NAMES = NAMES_IN_LLAMA | {"max_new_tokens": "num_predict", "turn_seed": "seed"}  # the server's names by the settings'


class Ollama(OpenAiServer):
    """An Ollama server. Its answers are JSON lines, with the number of tokens in the last. It does not say whether a
    model has a drafter: with #off no tokens are drafted, otherwise as many as the lane's lookahead, if it has one."""

    kind = "Ollama"
    draft_option = "no draft (#off)"
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
        """Recognises the server by its version, since the owner that it names is the publisher of the model."""
        return "version" in http.get(cls.health)

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


KINDS: list[type[ServerBackend]] = [SglangServer, LmStudio, MlxVlm, Ollama]  # in the order in which they are tried
