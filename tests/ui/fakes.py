"""A backend without a model: its lanes decode a fixed text."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator

from playground.errors import PlaygroundError
from playground.experiments.history import History
from playground.experiments.session import Session
from playground.hosting.access import Access
from playground.lane import Lane, Request
from playground.models.fit import Fit
from playground.presets import Pair, Prompt
from playground.progress import Progress
from playground.trace import Comparison, DraftToken, Environment, Reused, Round, TargetToken, Trace
from playground.ui.compare.handlers import Decoding, Handlers
from tests import examples

TEXT = (
    "TCP and UDP both carry packets, but only TCP promises **order**.\n\n"
    "1. TCP: a handshake, acknowledgements, retransmission.\n"
    "2. UDP: none of these; <script>alert('no')</script> & {{ value }} ${value} are text.\n\n"
    "தமிழில்: நம்பகமான இணைப்பு வேண்டுமெனில் TCP சிறந்தது. 👩‍🔬🙂 العربية من اليمين إلى اليسار، ثم QUIC.\n"
    "\tA-very-long-word-without-any-space-" + "x" * 120 + " ends here.\n"
)
GATE = threading.Event()  # where it is cleared, each lane stands still after five rounds
GATE.set()
PASS_S = 0.02
DRAFT_S = 0.002
LOOKAHEAD = 4

PAIR = Pair(
    name="fake",
    title="Fake pair",
    target="fake-target",
    weights={"assistant": "fake-assistant"},
    drafters=("ngram", "assistant"),
    drafter="ngram",
    lookahead=LOOKAHEAD,
    dtype="auto",
    size_gb=0.1,
    gated=False,
    note="Nothing is decoded here.",
)
READY = Fit("ready", 1e8, 2.1e10, 0, "It needs about 0.1 GB of memory, and 21 GB is free.")
LARGE = dataclasses.replace(PAIR, name="large", title="Large pair")
FAR = dataclasses.replace(PAIR, name="far", title="Far pair")
PAIRS = {pair.name: pair for pair in (PAIR, LARGE, FAR)}
FITS = {
    "large": Fit(
        "too large", 8.2e10, 2.1e10, 0, "It needs about 82 GB of memory, and 21 GB is free. Choose a smaller."
    ),
    "far": Fit("download", 3e9, 2.1e10, 2.4e9, "It needs about 3 GB of memory, and 21 GB is free."),
}
EXAMPLES = (
    Prompt(name="transport", title="TCP, UDP, QUIC", kind="comparison", text="Compare TCP, UDP and QUIC."),
    Prompt(name="speed", title="Average speed", kind="math", text="A train …", system="Answer step by step."),
)
ENVIRONMENT = dataclasses.replace(
    examples.ENVIRONMENT, device_name="Fake CPU", dtype="bfloat16", threads=2, weights=("fake weights <b>1</b>",)
)


def pieces(limit: int) -> list[str]:
    """The text as tokens: words and characters; every emoji takes two tokens, the first of which shows nothing."""
    split = re.findall(r" ?\w{1,9}|\s|[^\w\s]", TEXT)
    whole = [part for piece in split for part in (("", piece) if ord(piece[-1]) > 0xFFFF else (piece,))]
    repeated = whole * (limit // len(whole) + 1)
    return repeated[:limit]


def rounds(lane: Lane, limit: int, text: list[str] | None = None, *, noisy: bool = False) -> Iterator[Round]:
    """Rounds of a lane over the text; a drafting lane is right a varying number of times in a row."""
    text = text or pieces(limit)
    at, now, number = 0, 0.0, 0
    while at < len(text):
        number += 1
        room = len(text) - at
        asked = 0 if lane.drafter == "none" else min(lane.lookahead, room - 1)
        good = min(asked, (0, 2, 5, 1, 3, 16)[number % 6])
        drafted = tuple(
            DraftToken(
                id=_id(text[at + i]) if i < good else 7,
                text=text[at + i] if i < good else " nay",
                special=False,
                q=1.0,
                p=0.9 if i < good else 0.02 if i == good else None,
                margin=3.5 if i <= good else None,
                decision="accepted" if i < good else "rejected" if i == good else "unverified",
            )
            for i in range(asked)
        )
        reason = "plain" if not asked else "bonus" if good == asked else "correction"
        target = TargetToken(_id(text[at + good]), text[at + good], False, 0.8, 1.25, reason)
        start, draft_s = now, DRAFT_S * asked * (0.5 if lane.drafter == "assistant" else 1)
        now += draft_s + PASS_S * (2 if number == 1 else 4 if noisy and number % 3 == 0 else 1)
        yield Round(asked, drafted, target, start, draft_s, now - start - draft_s, now)
        at += good + 1


def lanes(lookahead: int = LOOKAHEAD, drafter: str = "ngram") -> tuple[Lane, Lane]:
    return (
        Lane("Standard", PAIR.target, lookahead=lookahead),
        Lane("Prompt lookup", PAIR.target, drafter=drafter, lookahead=lookahead),
    )


def comparison(tokens: int = 60, **request) -> Comparison:
    asked = Request(**{"prompt": "Compare TCP and UDP.", "max_new_tokens": tokens, **request})
    return Comparison(
        tuple(Trace(lane, asked, ENVIRONMENT, (1, 2, 3), tuple(rounds(lane, tokens)), "length") for lane in lanes())
    )


class Run:
    """A `LaneRun` in the rounds' own time. A prompt that says "echo" is decoded instead of the fixed text; one that
    says "noisy" has passes of unlike lengths."""

    amended = None
    markers, totals, turn = (), None, 4

    def __init__(self, lane: Lane, request: Request) -> None:
        prompt = request.prompt
        text = [prompt[i : i + 3] for i in range(0, len(prompt), 3)] if "echo" in prompt else None
        self.finish, held = "stopped", sum(len(turn.text) for turn in request.earlier)
        self.reused = Reused(held, 1000 * held) if held else None
        self.prompt_ids = tuple(range(held + len(prompt)))
        self.rounds = self._decoded(rounds(lane, request.max_new_tokens, text, noisy="noisy" in prompt))

    def _decoded(self, rounds: Iterator[Round]) -> Iterator[Round]:
        for number, round_ in enumerate(rounds):
            if number == 5:
                GATE.wait(120)
            time.sleep(round_.end_s - round_.start_s)
            yield round_
        self.finish = "length"

    def memory(self) -> None:
        return None


class Backend:
    """Prompts that say "fail" or "crash" do so while it warms up."""

    by_turns = True

    def __init__(self, pair: Pair = PAIR) -> None:
        self.pair = pair

    def load(self, lane: Lane, progress: Callable[[Progress], None]) -> None:
        progress(Progress("Loading", 0.5))

    def run(self, lane: Lane, request: Request) -> Run:
        return Run(lane, request)

    def warm_up(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        time.sleep(0.1)
        if "fail" in request.prompt:
            raise PlaygroundError("The device ran out of memory <b>here</b>. Ask for fewer tokens.")
        if "crash" in request.prompt:
            raise ZeroDivisionError("a bug")

    def describe(self, lane: Lane) -> Environment:
        return ENVIRONMENT

    def close(self) -> None:
        pass


class Store:
    """Loads nothing, visibly."""

    current: Pair | None = None

    def get(self, pair: Pair, *, drafter: str, dtype="auto", device="auto", progress=lambda _: None) -> None:
        for i in range(5):
            progress(Progress("Loading fake weights", i / 5))
            time.sleep(0.1)
        self.current = pair

    def fit(self, pair: Pair) -> Fit:
        return FITS.get(pair.name, READY)

    def sampling_defaults(self, name: str) -> dict[str, float]:
        return {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.0}

    def tokenizer(self, name: str) -> None:
        return None


def _id(piece: str) -> int:
    return zlib.crc32(piece.encode()) % 50_000


def handlers(
    pairs: dict[str, Pair] = PAIRS,
    backend_for: Callable[[Pair], Backend] = Backend,
    fit_of: Callable[[Pair], Fit] = Store().fit,  # noqa: B008  # it holds nothing
    elsewhere: Callable | None = None,
    access: Access = Access(),  # noqa: B008  # frozen
) -> Handlers:
    decoding = Decoding(backend_for, fit_of, elsewhere)
    return Handlers(pairs, decoding, Session(History(None), decoding), access)
