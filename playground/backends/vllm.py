"""vLLM over its OpenAI-compatible API: its rounds, and how it is started.

A chunk of an answer has the output of one verify step, seldom of more. How many tokens the steps drafted comes with
the last chunk (`--enable-per-request-metrics --per-request-spec-decode-metrics detailed`), or is estimated from the
change of the server's counters. The rounds follow from the sizes of the chunks and the steps that drafted.

https://docs.vllm.ai/en/stable/features/speculative_decoding/acceptance_metrics/
"""

from __future__ import annotations

import math
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from playground.backends.http import Http
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
    counters,
    reused_of,
    round_of,
    stop_of,
)
from playground.errors import PlaygroundError
from playground.lane import Lane, Request
from playground.metrics.load import Counts
from playground.progress import Progress
from playground.settings import SAMPLING, default
from playground.trace import DraftToken, Finish, Round, TargetToken


class Chunk(NamedTuple):
    """A part of an answer that arrived at once: the output of one step, or of more if the server or the network was
    slow."""

    pieces: list[Piece]
    end_s: float


class Step(NamedTuple):
    """A verify step that had a draft. vLLM also counts tokens past the end of the answer."""

    accepted: int
    drafted: int


PLAIN = Step(0, 0)


class _Part:
    """The output of one step."""

    def __init__(self, pieces: list[Piece], step: Step, end_s: float) -> None:
        self.pieces, self.step, self.end_s = pieces, step, end_s


def rounds_of(chunks: Sequence[Chunk], steps: Sequence[Step], lookahead: int | None) -> list[Round]:
    """Returns the rounds of a whole answer.

    A step that accepted nothing looks like one that drafted nothing, and vLLM lists only the former. Where several
    one-token chunks come before the next accepted draft, the last of them are assumed to have drafted.
    """
    left, parts = deque(steps), []
    single: list[_Part] = []  # one-token parts since the last accepted draft

    def assign(steps: list[Step]) -> None:
        for part, step in zip(single[len(single) - len(steps) :], steps, strict=True):
            part.step = step
        single.clear()

    for pieces, end_s in chunks:
        at = 0
        while at < len(pieces):
            step = PLAIN
            if len(pieces) - at > 1:
                assign([left.popleft() for _ in single if left and not left[0].accepted])
                step = left.popleft() if left else Step(len(pieces) - at - 1, len(pieces) - at - 1)
            part = _Part(pieces[at : at + step.accepted + 1], step, end_s)
            if len(pieces) == 1:
                single.append(part)
            parts.append(part)
            at += len(part.pieces)
    assign(list(left)[: len(single)])
    starts = [0.0, *(part.end_s for part in parts)]
    return [
        round_of(part.pieces, part.step.drafted, part.step.accepted, start_s, part.end_s, lookahead)
        for part, start_s in zip(parts, starts, strict=False)
    ]


def estimated(chunks: Sequence[Chunk], drafts: int, drafted: int) -> list[Step]:
    """Returns steps that fit the counts of a request: `drafts` steps that drafted `drafted` tokens, equally many each.
    The prefill drafts nothing."""
    accepted = [len(chunk.pieces) - 1 for chunk in chunks]
    ones = [i for i, n in enumerate(accepted) if n == 0 and i > 0]
    zero = set(ones[len(ones) - max(0, drafts - sum(n > 0 for n in accepted)) :]) if drafts else set()
    drafting = [n for i, n in enumerate(accepted) if n > 0 or i in zero]
    each, more = divmod(drafted, max(1, len(drafting)))
    return [Step(n, max(n, each + (i < more))) for i, n in enumerate(drafting)]


ESTIMATED = (
    "vLLM did not report the steps of this request: drafted tokens are estimated from its counters. Start it with "
    "--enable-per-request-metrics --per-request-spec-decode-metrics detailed."
)
NGRAM = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 3}'
UNKNOWN = "vLLM did not report the steps of this request: rejected tokens are missing in its rounds."
MIN_P_FIRST = "vLLM applies min-p before top-p, the playground after it: other tokens may be possible."
PAST_STOP = "vLLM counts all tokens of the verify step in which the stop string was completed, those after it too."
OTHERS = "Other requests ran meanwhile, and the counters include theirs: acceptance is approximate."

STRUCTURED = {"json_schema": "json", "regex": "regex", "grammar": "grammar"}  # vLLM's names, since 0.12


def start_vllm(
    model: str | None,
    progress: Callable[[Progress], None],
    *,
    speculative_config: str = "none",
    extra: Sequence[str] = (),
    port: int | None = None,
) -> Running:
    """Starts vLLM, with the metrics that show rounds, and waits until it is ready.

    Args:
        model: an id on the hub or a folder; None is the starter.
        speculative_config: vLLM's JSON, such as '{"method": "ngram", "num_speculative_tokens": 5}', or "none" for
            standard decoding.
        extra: more of vLLM's options.
        port: None takes a free one.

    Raises:
        PlaygroundError: vLLM is not installed, it does not start, or the starter is not available.
    """
    vllm = shutil.which("vllm")
    if not vllm:
        raise PlaygroundError("There is no vllm on the PATH. Activate the environment that it is installed in.")
    folder = model
    if not folder:
        from playground.models.fetch import starter  # imports torch

        folder = str(starter.fetch(progress).folder)
    port = port or free_port()
    # `vllm serve` fails in the CPU wheel, because it looks for a distribution of another name.
    command = [str(Path(vllm).with_name("python")), "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    command += ["--served-model-name", _served_name(model), "--host", HOST, "--port", str(port)]
    command.append("--enable-per-request-metrics")
    if speculative_config != "none":
        command += ["--speculative-config", speculative_config, "--per-request-spec-decode-metrics", "detailed"]
    return started([*command, *extra], port, {"VLLM_NO_USAGE_STATS": "1"}, progress)


def _served_name(model: str | None) -> str:
    return model or default("pair")


class VllmServer(ServerBackend):
    """A vLLM server.

    Raises:
        PlaygroundError: by the constructor, if the server's answers are not vLLM's; see `Http`.
    """

    kind = "vLLM"
    owner = "vllm"
    counter_names = CounterNames("vllm:", "generation_tokens_total", "num_requests_running", "num_requests_waiting")
    how_to_speculate = (
        'Start vLLM with --speculative-config, such as \'{"method": "ngram", "num_speculative_tokens": 5, '
        '"prompt_lookup_max": 3}\'.'
    )

    min_p_first = counts_past_stop = True
    _context: int = 2**31  # until a prompt was tokenised
    launch: ClassVar[Launch | None] = Launch(
        "vllm",
        help="vLLM, from the PATH",
        start=start_vllm,
        served_name=_served_name,
        model=Option("target", "a Hugging Face id or a folder (default: the starter)", "MODEL"),
        speculation=Option("speculative_config", "as vLLM takes it", "JSON"),
        example=NGRAM,
    )

    def __init__(self, http: Http, model: str) -> None:
        super().__init__(http, model)
        self._version = http.get("/version")["version"]
        known = self._counters()
        self.drafter = "none" if known.drafts is None else UNREPORTED
        self._lookahead = len(known.accepted_at) or None
        self._salt = uuid.uuid4().hex

    def lane(self, lookahead: int | None = None, taken: Sequence[Lane] = ()) -> Lane:
        """Returns the server's lane. The lookahead is always the server's own."""
        return super().lane(self._lookahead, taken)

    def encode(self, request: Request) -> list[int]:
        prompt = chat_of(request) if request.chat_template else {"prompt": request.text}
        answer = self.http.post("/tokenize", {"model": self.model, **prompt})
        check_room(self.name, len(answer["tokens"]), answer["max_model_len"])
        self._context = answer["max_model_len"]
        return answer["tokens"]

    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        if self.min_p_first and run.request.min_p and run.request.top_p < 1:
            run.notes.append(MIN_P_FIRST)
        before = self._counters() if self.details else None
        chunks: list[Chunk] = []
        reason, stopped, end = "", False, dict[str, Any]()
        for seconds, data in self.http.stream("/v1/completions", self._body(run.request, run.prompt_ids or ())):
            end |= {key: value for key, value in data.items() if value}
            for choice in data["choices"]:
                reason = choice["finish_reason"] or reason
                stopped = _stopped(choice)
                if choice["token_ids"]:
                    chunks.append(Chunk(_pieces(choice), seconds))
                    yield from self._so_far(chunks)
        self.check_whole(bool(reason))
        usage = end.get("usage", {}).get("prompt_tokens_details") or {}
        run.reused = reused_of(usage.get("cached_tokens"))
        tokens = sum(len(chunk.pieces) for chunk in chunks)
        if stopped and self.counts_past_stop and self.drafter != "none":
            run.notes.append(PAST_STOP)
        ended: Finish = "stop string" if stopped else "eos"
        run.finish = ended if reason == "stop" else "length" if tokens == run.request.max_new_tokens else "context"
        steps = self._steps(run, chunks, end, before)
        rounds = rounds_of(chunks, steps, self._lookahead)
        run.amended = tuple(self._annotated(run, rounds) if self.details else rounds)

    def _so_far(self, chunks: Sequence[Chunk]) -> list[Round]:
        """Returns the rounds of the last chunk: the accepted tokens, without the rejected ones."""
        *_, last = chunks
        n = len(last.pieces)
        steps = [PLAIN] * n if self.drafter == "none" else [Step(n - 1, n - 1)] if n > 1 else []
        start_s = chunks[-2].end_s if len(chunks) > 1 else 0.0
        rounds = rounds_of([last], steps, self._lookahead)
        return [replace(round_, start_s=max(start_s, round_.start_s)) for round_ in rounds]

    def _steps(self, run: ServerRun, chunks: list[Chunk], end: dict[str, Any], before: Counts | None) -> list[Step]:
        """Returns the steps that drafted: as reported, or estimated from the counters, or without the rejected tokens;
        a note says which. `end`: the fields of the last chunks."""
        if self.drafter == "none":
            return [PLAIN] * sum(len(chunk.pieces) for chunk in chunks)
        reported = end.get("metrics", {}).get("speculative_decoding") or {}
        accepted, drafted = (reported.get(f"per_step_{name}", ()) for name in ("accepted", "drafted"))
        if reported.get("num_spec_steps") == len(drafted):
            return [Step(*counts) for counts in zip(accepted, drafted, strict=True)]
        if before is None:
            run.notes.append(UNKNOWN)
            return []
        after = self._counters()
        run.notes.append(ESTIMATED)
        if after.tokens - before.tokens > sum(len(chunk.pieces) for chunk in chunks):
            run.notes.append(OTHERS)
        gained = [(getattr(after, name) or 0) - (getattr(before, name) or 0) for name in ("drafts", "drafted")]
        return estimated(chunks, *gained)

    def _annotated(self, run: ServerRun, rounds: list[Round]) -> list[Round]:
        """Returns the rounds with each token's text and, in greedy decoding, p and margin. They come from one more
        request, over the prompt and the answer, after the clock was read. The rounds do not change if the server
        refuses it."""
        ids = [token.id for round_ in rounds for token in round_.tokens]
        prompt = list(run.prompt_ids or ())
        if len(prompt) + len(ids) >= self._context:
            return rounds
        body = {"model": self.model, "prompt": [*prompt, *ids], "max_tokens": 1, "temperature": 0}
        known: list[dict[str, Any]] = []
        with suppress(PlaygroundError, KeyError, TypeError):
            choice = self.http.post("/v1/completions", body | {"prompt_logprobs": 2})["choices"][0]
            known = choice["prompt_logprobs"][len(prompt) :]
        request = run.request
        plain = request.greedy and not request.penalised and not request.constraint
        return annotated(rounds, known, plain=plain)

    def alone(self, ids: Sequence[int], request: Request, *, fresh: bool = False) -> Alone | None:
        how = {"stream": False, "max_tokens": 1, "logprobs": BEST, "return_tokens_as_token_ids": True}
        body = self._body(request, ids) | how | {"cache_salt": uuid.uuid4().hex if fresh else self._salt}
        del body["stream_options"]
        (choice,) = self.http.post("/v1/completions", body)["choices"]
        best = sorted((choice.get("logprobs") or {}).get("top_logprobs", [{}])[0].items(), key=lambda it: -it[1])
        known = tuple((int(name.partition(":")[2]), logprob) for name, logprob in best[:BEST])
        return Alone(choice["token_ids"][0], choice["text"], known)

    def software(self) -> tuple[dict[str, str], str | None]:
        return {"vllm": self._version}, None

    def _counters(self) -> Counts:
        return counters(self.http.text("/metrics"), self.counter_names)

    def _body(self, request: Request, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """Returns the body that asks for the request's distribution, with nothing from the checkpoint's generation
        config. The salt limits the prefix cache to one conversation's own turns, or bypasses it, so that every run has
        its prefill."""
        return {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": min(request.max_new_tokens, self._context - len(prompt_ids)),
            "seed": request.turn_seed,
            **{name: getattr(request, name) for name in SAMPLING},  # vLLM has them by the same names
            "cache_salt": conversation_of(request) or uuid.uuid4().hex,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **stop_of(request),
            **_structured(request),
        }


def _structured(request: Request) -> dict[str, Any]:
    name = request.constraint
    return {"structured_outputs": {STRUCTURED[name]: getattr(request, name)}} if name else {}


def _stopped(choice: dict[str, Any]) -> bool:
    """Returns whether a stop string ended the answer. vLLM names it as `stop_reason`, SGLang as `matched_stop`; at an
    end of text these are null or the token's id."""
    return isinstance(choice.get("stop_reason") or choice.get("matched_stop"), str)


def _pieces(choice: dict[str, Any]) -> list[Piece]:
    """Returns a chunk's tokens. The last token that is no end of text carries the chunk's whole text."""
    *first, last = [Piece(id_, "") for id_ in choice["token_ids"]]
    if choice["finish_reason"] != "stop" or _stopped(choice):
        return [*first, last._replace(text=choice["text"])]
    last = last._replace(special=True)
    return [*first[:-1], first[-1]._replace(text=choice["text"]), last] if first else [last]


def annotated(rounds: list[Round], known: list[dict[str, Any]], *, plain: bool) -> list[Round]:
    """Returns the rounds with the scores that a second request gave of their tokens.

    Args:
        known: for each token vLLM's `prompt_logprobs`: its own and the best two, by token id.
        plain: whether the distribution that was decoded from is the one that vLLM reports.
    """
    tokens = [token for round_ in rounds for token in round_.tokens]
    if len(known) != len(tokens) or not all(str(token.id) in it for token, it in zip(tokens, known, strict=True)):
        return rounds
    texts = [it[str(token.id)]["decoded_token"] for token, it in zip(tokens, known, strict=True)]
    texts = ["" if token.special else text for token, text in zip(tokens, texts, strict=True)]
    if "".join(texts) != "".join(token.text for token in tokens):
        texts = [token.text for token in tokens]
    found = iter(
        zip(texts, (_scores(token.id, it, plain) for token, it in zip(tokens, known, strict=True)), strict=True)
    )

    def better(token: DraftToken | TargetToken) -> Any:
        text, (p, margin) = next(found)
        return replace(token, text=text, p=p, margin=margin)

    return [
        replace(
            round_,
            drafted=tuple(better(it) if it.decision == "accepted" else it for it in round_.drafted),
            target=better(round_.target) if round_.target else None,
        )
        for round_ in rounds
    ]


def _scores(id_: int | None, known: dict[str, Any], plain: bool) -> tuple[float | None, float | None]:
    """Returns p and margin of a token."""
    if not plain:
        return None, None
    best = sorted((it["logprob"] for it in known.values()), reverse=True)
    return math.exp(known[str(id_)]["logprob"]), best[0] - best[1]
