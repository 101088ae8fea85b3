"""The common parts of all kinds of server as backends: lanes, runs, and rounds with unknowns.

A server reports less than the engine in this process. What it does not report is None in the trace: the ids of
rejected tokens, p, q, margins, and the split of a round's time. Times are read here, at the client.
"""

from __future__ import annotations

import datetime
import hashlib
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, ClassVar, NamedTuple

from playground import __version__, constraint
from playground.backends.http import Http
from playground.backends.launch import Launch
from playground.conversation import read_arguments, read_tools
from playground.errors import check
from playground.lane import Lane, Request
from playground.metrics.load import Counts
from playground.progress import Progress
from playground.settings import SETTINGS, default
from playground.trace import Decision, DraftToken, Environment, Finish, Reason, Reused, Round, TargetToken, Totals

BEST = 20  # tokens whose log-probabilities are requested; vLLM reports no more unless it is started so
WARM_UP_TOKENS = 16
WARM_UP_PROMPT = "…"
UNREPORTED = "server"  # the drafter of a server that drafts and does not report how
UNKNOWN = "unknown"  # the drafter of a server that may draft or not
WITH_PROMPT = "Its presence and frequency penalty count the prompt's tokens too, the playground's the answer's alone."
CACHED = (
    "A request cannot keep this server's prefix cache out: a prompt that it answered before may have a shorter TTFT."
)


class CounterNames(NamedTuple):
    """The names of the counters of a kind of server. The names for drafts are vLLM's in every kind."""

    prefix: str
    tokens: str
    running: str
    waiting: str


class Alone(NamedTuple):
    """A token that a server drew in a request of its own, for which nothing can be drafted. `best`: the likeliest
    tokens at its place with their log-probabilities, in order; empty if the server does not report them."""

    id: int
    text: str
    best: tuple[tuple[int, float], ...]


class Piece(NamedTuple):
    """A token of an answer. `id` is None if the server does not report it."""

    id: int | None
    text: str
    special: bool = False


def backend_name(kind: str, url: str) -> str:
    """Returns the value of `Lane.backend` in lanes of a server."""
    return f"{kind} at {url}"


def lane_of(
    kind: str, url: str, model: str, drafter: str, lookahead: int | None = None, taken: Sequence[Lane] = ()
) -> Lane:
    """Returns the lane of a server. Its name differs from those of the lanes `taken`."""
    method = {"none": "standard", UNREPORTED: "speculative", UNKNOWN: "drafts unknown"}.get(drafter, drafter)
    name = f"{kind}: {method}"
    if name in (lane.name for lane in taken):
        name += f", {url}"
    return Lane(name, model, drafter, lookahead=lookahead or default("lookahead"), backend=backend_name(kind, url))


class ServerBackend(ABC):
    """Runs lanes on one server. Runs may overlap. A kind of server is a subclass in `connect.KINDS`;
    docs/add-a-backend.md shows how to add one.

    Attributes:
        kind: the program.
        owner: the owner of models that such a server names at /v1/models; it identifies the kind unless `is_at` is
            overridden.
        counter_names: the names of its counters at /metrics; None if it shows none.
        launch: how it is started here; None if it cannot be.
        how_to_speculate: a sentence for users who started it without a drafter.
        model: the server's name for its model.
        drafter: see `Lane`: "none", the server's name for its method, UNREPORTED or UNKNOWN.
        draft_option: the meaning of the part of an address after "#", in words; "" if a request cannot choose the
            drafter.
        health: a path that answers once the server is ready.
        own_prefill: whether a request can bypass the server's prefix cache.
        obeys_lookahead: whether it drafts as many tokens as a request asks for.
        takes_stops: whether a request can name stop strings.
        counts_prompt: whether presence and frequency penalty count the prompt's tokens too.
        details: whether a run may send further requests, outside its clock, to learn more about its own.
    """

    kind: ClassVar[str]
    owner: ClassVar[str] = ""
    counter_names: ClassVar[CounterNames | None] = None
    launch: ClassVar[Launch | None] = None
    how_to_speculate: ClassVar[str]
    draft_option: ClassVar[str] = ""
    health: ClassVar[str] = "/health"
    own_prefill: ClassVar[bool] = True
    takes_stops: ClassVar[bool] = True
    counts_prompt: ClassVar[bool] = False
    drafter: str = UNREPORTED
    obeys_lookahead: bool = False
    details: bool = True
    by_turns: bool = False  # a server's clock cannot be stopped

    def __init__(self, http: Http, model: str) -> None:
        check(
            not http.draft or bool(self.draft_option),
            f"{self.kind} does not let a request choose the drafter. Leave #{http.draft} out of the address.",
        )
        self.http, self.model = http, model
        self._notes: dict[Lane, tuple[str, ...]] = {}  # from a lane's last run
        self._encoded: dict[Request, list[int] | None] = {}

    @classmethod
    def is_at(cls, http: Http, listing: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether a server with this listing at /v1/models is of this kind. It may request more from the
        server; a PlaygroundError then means no."""
        return listing[0].get("owned_by") == cls.owner

    @classmethod
    def models(cls, listing: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Returns the names of its models, each with its aliases, from the list at /v1/models."""
        return {str(it["id"]): [] for it in listing}

    @property
    def name(self) -> str:
        """The value of `Lane.backend` in its lanes."""
        return backend_name(self.kind, self.http.address)

    def lane(self, lookahead: int | None = None, taken: Sequence[Lane] = ()) -> Lane:
        """Returns the server's lane. Its name differs from those of the lanes `taken`."""
        return lane_of(self.kind, self.http.address, self.model, self.drafter, lookahead, taken)

    def load(self, lane: Lane, progress: Callable[[Progress], None]) -> None:
        progress(Progress(f"Asking {self.name}"))
        self.http.text(self.health)

    @abstractmethod
    def encode(self, request: Request) -> list[int] | None:
        """Returns the tokens of the request as the server tokenises it, with its chat template if the request wants
        that. None if the server does not report them.

        Raises:
            PlaygroundError: the server cannot serve the request, or the prompt does not fit its context.
        """

    @abstractmethod
    def answer(self, run: ServerRun) -> Generator[Round, None, None]:
        """Sends a run's request and yields the rounds of the answer. Sets `run.finish` at the end, and `run.amended`
        and `run.notes` if needed."""

    def run(self, lane: Lane, request: Request) -> ServerRun:
        if request not in self._encoded:
            if request.constraint:  # some servers ignore what they cannot read
                constraint.keeps(request, "", whole=False)
            self._encoded[request] = self.encode(request)
        return ServerRun(self, lane, request, self._encoded[request])

    def warm_up(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        short = replace(request, max_new_tokens=min(request.max_new_tokens, WARM_UP_TOKENS))
        # The warm-up fills the server's cache with the earlier turns, which the turn itself may reuse.
        if conversation_of(request) or not self.own_prefill:
            short = replace(short, prompt=WARM_UP_PROMPT, history=request.earlier)
        for _ in self.run(lane, short).rounds:
            if stopped():
                break

    def alone(self, ids: Sequence[int], request: Request, *, fresh: bool = False) -> Alone | None:
        """Returns the next token after `ids`, drawn as the request samples, with the BEST likeliest; None if the server
        takes no token ids. `fresh`: read all ids in one pass, rather than the last one after cached others."""
        return None

    def check_whole(self, ended: bool) -> None:
        """Checks that an answer came to its end.

        Raises:
            PlaygroundError: it broke off.
        """
        check(ended, f"{self.name} broke off in the middle of an answer. It may have crashed: its log says more.")

    @abstractmethod
    def software(self) -> tuple[dict[str, str], str | None]:
        """Returns the versions of the server's software, and the number format of its weights (None if it is
        unknown)."""

    def describe(self, lane: Lane) -> Environment:
        versions, dtype = self.software()
        return Environment(
            versions={"playground": __version__, "python": platform.python_version(), **versions},
            platform=None,
            device=None,
            device_name=self.name,
            dtype=dtype,
            threads=None,
            weights=(f"{self.model} in {self.name}",),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            notes=self._notes.get(lane, ()),
        )

    def ended(self, run: ServerRun) -> None:
        """Stores a run's notes for `describe`."""
        self._notes[run.lane] = tuple(run.notes)

    def close(self) -> None:
        self.http.close()


class ServerRun:
    """A run of one request on a server."""

    def __init__(self, backend: ServerBackend, lane: Lane, request: Request, prompt_ids: Sequence[int] | None) -> None:
        self.lane, self.request = lane, request
        self.prompt_ids: tuple[int, ...] | None = None if prompt_ids is None else tuple(prompt_ids)
        self.markers: tuple[tuple[int, str], ...] = ()
        self.finish: Finish = "stopped"
        self.reused: Reused | None = None
        self.totals: Totals | None = None
        self.turn = 1  # no other lane waits for it
        self.amended: tuple[Round, ...] | None = None
        self.notes = [] if backend.own_prefill else [CACHED]
        if request.stops and not backend.takes_stops:
            self.notes.append(f"{backend.kind} takes no stop strings: this lane's answer goes past them.")
        if backend.counts_prompt and (request.presence_penalty or request.frequency_penalty):
            self.notes.append(f"{backend.kind}: {WITH_PROMPT}")
        self.rounds: Generator[Round, None, None] = self._decoded(backend)

    def memory(self) -> None:
        """Returns None, because a server does not report its memory."""

    def _decoded(self, backend: ServerBackend) -> Generator[Round, None, None]:
        try:
            pieces = []
            for round_ in backend.answer(self):
                pieces += [token.text for token in round_.tokens if not token.special]
                yield round_
            if self.request.constraint:
                self._check("".join(pieces))
        finally:
            backend.ended(self)

    def _check(self, text: str) -> None:
        """Adds a note on an answer that does not follow the grammar: a server built without support may not report
        that."""
        if not constraint.keeps(self.request, text, whole=self.finish == "eos" and not self.request.stops):
            name = SETTINGS[self.request.constraint].label
            self.notes.append(f"{name}: this server's answer does not keep to it. The server may have passed it over.")


def round_of(
    pieces: Sequence[Piece], drafted: int, accepted: int, start_s: float, end_s: float, lookahead: int | None = None
) -> Round:
    """Returns the round of one verify step.

    Args:
        pieces: its output, of which the first `accepted` are draft tokens. The target's own token comes last; it is
            missing if an accepted token ended the text.
        drafted: how many tokens were drafted.
    """
    accepted_pieces = pieces[:accepted]
    last = pieces[accepted] if len(pieces) > accepted else None
    wrong = drafted - len(accepted_pieces)
    decisions: list[Decision] = ["unverified"] * wrong
    if last and wrong:
        decisions[0] = "rejected"
    reason: Reason = "plain" if not drafted else "correction" if wrong else "bonus"
    return Round(
        lookahead=lookahead,
        drafted=(
            *(DraftToken(*piece, q=None, p=None, margin=None, decision="accepted") for piece in accepted_pieces),
            *(DraftToken(None, "", False, None, None, None, decision) for decision in decisions),
        ),
        target=TargetToken(*last, p=None, margin=None, reason=reason) if last else None,
        start_s=start_s,
        draft_s=None,
        verify_s=None,
        end_s=end_s,
    )


def chat_of(request: Request) -> dict[str, Any]:
    """Returns the input of a server's chat template: messages, tools and the template's arguments."""
    chat: dict[str, Any] = {"messages": request.messages}
    if tools := read_tools(request.tools):
        chat["tools"] = tools
    if arguments := read_arguments(request.template):
        chat["chat_template_kwargs"] = arguments
    return chat


def stop_of(request: Request) -> dict[str, Any]:
    """Returns the stop strings in the field that has the same name in all programs; nothing if there are none."""
    return {"stop": list(request.stops)} if request.stops else {}


def conversation_of(request: Request) -> str:
    """Returns the key of the conversation whose earlier turns a server may reuse from its prefix cache; "" if it may
    reuse none, because there is no conversation or the request wants its prefill."""
    if not request.prefix_cache or not request.earlier:
        return ""
    begins = "\0".join((request.system, request.tools, request.template, request.turns[0].text))
    return hashlib.sha256(begins.encode()).hexdigest()


def reused_of(tokens: int | None) -> Reused | None:
    """Returns the reused tokens that a server reports of its prefix cache."""
    return None if tokens is None else Reused(tokens)


def check_room(name: str, prompt: int, context: int | None) -> None:
    """Checks that the prompt leaves room for an answer.

    Raises:
        PlaygroundError: the prompt fills the server's context.
    """
    check(
        context is None or prompt < context,
        f"The prompt has {prompt:,} tokens, and the context of {name} holds {context or 0:,}. Shorten the prompt to "
        "leave room for an answer.",
    )


# A server's own counts, from /metrics in Prometheus's text format, by the same names for every kind of server:
# https://prometheus.io/docs/instrumenting/exposition_formats/

LINE = re.compile(r"(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


def counters(text: str, names: CounterNames) -> Counts:
    """Reads the text at a server's /metrics. Several engines of a server are added up.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    counted = [
        sample._replace(name=sample.name.removeprefix(names.prefix))
        for sample in samples(text)
        if sample.name.startswith(names.prefix)
    ]
    check(bool(counted), f"The server's /metrics has no counters that begin with {names.prefix}")
    by_position: dict[int, int] = {}
    for sample in counted:
        if sample.name == "spec_decode_num_accepted_tokens_per_pos_total":
            label = sample.labels.get("position", "0")
            check(
                label.isdecimal() and len(label) < 7,
                f"The server's /metrics counts accepted tokens at {label[:20]!r}, not at a position.",
            )
            position = int(label)
            by_position[position] = by_position.get(position, 0) + int(sample.value)
    return Counts(
        drafts=_total(counted, "spec_decode_num_drafts_total"),
        drafted=_total(counted, "spec_decode_num_draft_tokens_total"),
        accepted=_total(counted, "spec_decode_num_accepted_tokens_total"),
        accepted_at=tuple(by_position[position] for position in sorted(by_position)),
        tokens=_total(counted, names.tokens) or 0,
        running=_total(counted, names.running) or 0,
        waiting=_total(counted, names.waiting) or 0,
    )


def _total(found: Sequence[Sample], name: str) -> int | None:
    """Returns the sum over labels; None if there is no such sample."""
    values = [sample.value for sample in found if sample.name == name]
    return sum(map(int, values)) if values else None


class Sample(NamedTuple):
    """A value of a metric, with the metric's labels."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> list[Sample]:
    """Returns all finite samples. Comments and invalid lines are left out."""
    parsed = []
    for line in text.splitlines():
        if match := LINE.match(line):
            try:
                value = float(match["value"])
            except ValueError:
                continue
            if isfinite(value):
                parsed.append(Sample(match["name"], dict(LABEL.findall(match["labels"] or "")), value))
    return parsed
