"""llama.cpp's HTTP server: its rounds, and how it is started.

With `timings_per_token` each token's event carries the counts so far of drafted and accepted tokens, from which the
rounds follow.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from llguidance import regex_to_lark

from playground.backends.http import Event, Http
from playground.backends.launch import HOST, Launch, Option, Running, free_port, started
from playground.backends.server import (
    BEST,
    UNREPORTED,
    Alone,
    CounterNames,
    Piece,
    ServerBackend,
    ServerRun,
    chat_of,
    check_room,
    conversation_of,
    reused_of,
    round_of,
    stop_of,
)
from playground.drafting_methods import MATCHED
from playground.errors import PlaygroundError, check, install_hint
from playground.lane import Request
from playground.progress import Progress
from playground.settings import default
from playground.trace import Finish, Round

ENDS: dict[str, Finish] = {"eos": "eos", "word": "stop string", "limit": "length"}
REPEATED = "The tide comes in, the tide goes out, and the gulls cry over the harbour wall. " * 6  # lookups draft here
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
MOD_MATCH, MOD_LEAST = 24, 48  # tokens of ngram-mod's match, and of its shortest draft: llama.cpp's own
NAMES = {  # the server's names by the settings'
    "max_new_tokens": "n_predict",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
SEEDS = 2**32 - 1  # this value itself means a random seed
CONTEXT = 2**20  # tokens that the penalties look back: the whole context


def start_llama(
    gguf: str | Path | None,
    progress: Callable[[Progress], None],
    *,
    lookup: str = "none",
    lookahead: int = default("lookahead"),
    slots: int = 4,
    context: int = 2048,
    threads: int | None = None,
    extra: Sequence[str] = (),
    port: int | None = None,
) -> Running:
    """Starts the llama-server on the PATH or otherwise the one in the wheel xllamacpp, and waits until it is ready.

    Args:
        gguf: a file; None is the starter's.
        lookup: one of LOOKUPS, or "none" for standard decoding. ngram-mod pays with a `lookahead` of 48 or more.
        slots: requests that it decodes concurrently, each with `context` tokens.
        threads: None takes half of the cores, because busy cores make llama.cpp spin.
        extra: more of llama-server's options, such as --rpc; the wheel's server has those of a drafter: --spec-type,
            --model-draft and --spec-draft-n-max.
        port: None takes a free one.

    Raises:
        PlaygroundError: neither is installed, the server does not start, or the starter is not available.
    """
    if not gguf:
        from playground.models.fetch import starter  # imports torch

        gguf = starter.fetch_gguf(progress)
    port = port or free_port()
    options = ["--model", str(gguf), "--host", HOST, "--port", str(port), "--ctx-size", str(slots * context)]
    options += ["--parallel", str(slots), "--threads", str(threads or max(1, (os.cpu_count() or 1) // 2)), "--metrics"]
    if lookup != "none":
        options += ["--spec-type", lookup, *_sizes(lookup, lookahead)]
    options += extra
    if binary := shutil.which("llama-server"):
        command = [binary, *options]
    elif find_spec("xllamacpp"):
        command = [sys.executable, "-m", "playground.backends.xllama", *options]
    else:
        raise PlaygroundError("There is no llama-server on the PATH, and no wheel of it. " + install_hint("llama"))
    return started(command, port, {}, progress)


def _sizes(lookup: str, lookahead: int) -> list[str]:
    """Returns the options of a lookup's match, as long as the playground's own longest one, and of its draft. ngram-mod
    needs longer matches and is made for long drafts: a shorter lookahead is also the least."""
    sizes = {"size-n": MATCHED[0], "size-m": lookahead}
    if lookup == "ngram-mod":
        sizes = {"n-match": MOD_MATCH, "n-min": min(MOD_LEAST, lookahead), "n-max": lookahead}
    return [word for name, size in sizes.items() for word in (f"--spec-{lookup}-{name}", str(size))]


def _served_name(gguf: str | None) -> str:
    from playground.models.fetch import starter  # imports torch

    return PurePath(gguf or starter.GGUF).name


class LlamaServer(ServerBackend):
    """A llama-server.

    Raises:
        PlaygroundError: by the constructor, if the server's answers are not a llama-server's; see `Http`.
    """

    kind = "llama-server"
    owner = "llamacpp"
    counts_prompt = True
    counter_names = CounterNames("llamacpp:", "tokens_predicted_total", "requests_processing", "requests_deferred")
    how_to_speculate = "Start llama-server with --spec-type, such as --spec-type ngram-simple, or with a draft model."
    launch = Launch(
        "llama",
        help="llama-server from the PATH, or the one in the wheel xllamacpp",
        start=start_llama,
        served_name=_served_name,
        model=Option("gguf", "the model (default: the starter's)", "FILE"),
        speculation=Option("lookup", "prompt lookup"),
        methods=LOOKUPS,
        example=LOOKUPS[0],
        numbers=(
            Option("slots", "requests at the same time (default: %(default)s)", "N", 4),
            Option("context", "tokens of a slot (default: %(default)s)", "N", 2048),
            Option("threads", "CPU threads (default: half of the cores)", "N"),
        ),
        lookahead=True,
    )

    def __init__(self, http: Http, model: str) -> None:
        super().__init__(http, model)
        self._props = http.get("/props")
        self.drafter, self.obeys_lookahead = self._probe()

    @classmethod
    def models(cls, listing: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Lists the models. A model's id is the path of its file."""
        return {PurePath(it["id"]).name: [it["id"], *it.get("aliases", [])] for it in listing}

    def encode(self, request: Request) -> list[int]:
        text = request.text
        if request.chat_template:
            text = self.http.post("/apply-template", chat_of(request))["prompt"]
        ids = self.http.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        check(bool(ids), "The server makes no tokens of this prompt. Write something else.")
        check_room(self.name, len(ids), self._props["default_generation_settings"].get("n_ctx"))
        return ids

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        lookahead = run.lane.lookahead if self.obeys_lookahead else None
        body = _body(run.request, list(run.prompt_ids or ()))
        if lookahead:
            body["speculative.n_max"] = lookahead
        end: dict[str, Any] = {}
        yield from rounds(self.http.stream("/completion", body), end, lookahead)
        self.check_whole(bool(end))
        run.reused = reused_of(end.get("timings", {}).get("cache_n"))
        context = end.get("truncated") or (
            end["stop_type"] == "limit" and end["tokens_predicted"] < run.request.max_new_tokens
        )
        run.finish = "context" if context else ENDS[end["stop_type"]]

    def alone(self, ids: Sequence[int], request: Request, *, fresh: bool = False) -> Alone:
        how = {"n_predict": 1, "stream": False, "n_probs": BEST, "cache_prompt": not fresh}
        body = _body(request, list(ids)) | how
        answer = self.http.post("/completion", body)
        known = answer.get("completion_probabilities")
        if not known:  # it ends inside a character; they are the same whichever token is drawn
            drawn = body | {"temperature": 0, "logit_bias": [["a", 100]]}
            known = self.http.post("/completion", drawn).get("completion_probabilities") or [{}]
        best = tuple((it["id"], it["logprob"]) for it in known[0].get("top_logprobs", ()))
        return Alone(answer["tokens"][0], answer["content"], best)

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"llama.cpp": self._props.get("build_info", "unknown")}, self._props.get("model_ftype")

    def _probe(self) -> tuple[str, bool]:
        """Returns the server's drafter, and whether it obeys a request's lookahead: a build that does drafts one token
        a step here."""
        body = _body(Request(REPEATED, max_new_tokens=8), REPEATED) | {"speculative.n_max": 1}
        end: dict[str, Any] = {}
        drafts = [len(round_.drafted) for round_ in rounds(self.http.stream("/completion", body), end)]
        method = end.get("generation_settings", {}).get("speculative.types")
        drafter = method or (UNREPORTED if any(drafts) else "none")
        return drafter, max(drafts) == 1


def _body(request: Request, prompt: list[int] | str) -> dict[str, Any]:
    """Returns a request's body that asks for its distribution, as transformers defines it: penalty, temperature, top-k,
    top-p, min-p in this order, and nothing else. The prompt cache is off except for later turns of a conversation, so
    that every run has its prefill."""
    return {
        "prompt": prompt,
        **{theirs: getattr(request, ours) for ours, theirs in NAMES.items()},
        "repeat_last_n": CONTEXT,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "seed": request.turn_seed % SEEDS,
        "cache_prompt": bool(conversation_of(request)),
        "stream": True,
        "return_tokens": True,
        "timings_per_token": True,
        **stop_of(request),
        **_structured(request),
    }


def _structured(request: Request) -> dict[str, Any]:
    """Returns the fields of a constraint. A JSON schema works in any build, a Lark grammar if it was built with
    llguidance (docs/llguidance.md of llama.cpp)."""
    if request.json_schema:
        return {"json_schema": json.loads(request.json_schema)}
    lark = f"start: /{regex_to_lark(request.regex, '')}/" if request.regex else request.grammar
    return {"grammar": f"%llguidance {{}}\n{lark}"} if lark else {}


def rounds(events: Iterable[Event], end: dict[str, Any], lookahead: int | None = None) -> Generator[Round, None, None]:
    """Yields the verify steps of an answer. `end` is filled with its last event.

    A step's tokens come one event each, and already the first has the counts after the step. A token that ends inside a
    character has no event, and its id remains unknown.
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
