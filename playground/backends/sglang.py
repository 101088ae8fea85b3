"""SGLang: vLLM's way of asking and answering, and counts of its own.

An answer's chunks have the output of one verify step each, and after the prefill each step drafts. The last chunk
counts the steps and the draft tokens of the whole answer (`return_spec_tokens_details`).

Read in SGLang 0.5.23: entrypoints/openai/protocol.py, managers/tokenizer_manager.py.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from playground.backends.counters import CounterNames
from playground.backends.http import Http
from playground.backends.server import ServerBackend, ServerRun
from playground.backends.vllm import VllmServer
from playground.backends.vllm_rounds import PLAIN, Chunk, Step, estimated
from playground.errors import check
from playground.lane import Request
from playground.metrics.serving import Counts
from playground.trace import Round

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
        drafts = self._info.get("speculative_num_draft_tokens")  # the verify pass's tokens, the last one included
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

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"sglang": self._info["version"]}, self._info.get("dtype")

    def _body(self, request: Request, prompt_ids: Sequence[int]) -> dict[str, Any]:
        body = super()._body(request, prompt_ids)
        body.pop("structured_outputs", None)
        body["top_k"] = request.top_k or -1  # 0 is refused
        held = {request.constraint: getattr(request, request.constraint)} if request.constraint else {}
        return body | {"return_spec_tokens_details": True, **held}
