"""mlx-vlm's server: OpenAI's API, with llama.cpp's names for the counts of a whole answer.

Read in mlx-vlm 0.7.10: server/schemas.py (GenerationTimings), speculative/common.py (speculative_stats_since).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from playground.backends.http import Http
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerRun
from playground.format import count
from playground.trace import Round, Totals

LOOK_BACK = 2**20  # tokens: all of them


class MlxVlm(OpenAiServer):
    """It counts the rounds that drafted, all requests of a batch together: right where it answers one at a time. A
    round is counted before the end of the answer cuts it, so that tokens which nobody got count as accepted."""

    kind = "mlx-vlm"
    how_to_speculate = "Start mlx_vlm.server with --draft-model."
    health = "/health"
    takes_stops = False  # its ChatRequest has no such field

    @classmethod
    def is_at(cls, http: Http, listing: Sequence[Mapping[str, Any]]) -> bool:
        """It names no owner, and says which models are loaded."""
        return "loaded" in listing[0] and "owned_by" not in listing[0]

    @classmethod
    def models(cls, listing: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """It lists what it could load, too."""
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
        """Its penalties look back 20 tokens unless they are told how many."""
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
