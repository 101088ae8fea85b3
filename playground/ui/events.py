"""What happens when someone presses something. Handlers drain a run and never touch a tensor.

A run waits in the queue and decodes in a thread of its own. It is stopped by its session's Stop, by an error, by the
end of its session, or when Gradio closes the handler's generator because the tab was closed.
"""

from __future__ import annotations

import html
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from playground import export
from playground.backends.base import Backend
from playground.backends.device_queue import DeviceQueue
from playground.errors import PlaygroundError
from playground.experiments.background import BackgroundRun
from playground.experiments.events import Event, Finished
from playground.experiments.work import Compare, Repeat, Work
from playground.lane import LOCAL
from playground.models.device import gigabytes
from playground.models.fit import Fit
from playground.presets import Pair
from playground.progress import Progress
from playground.trace import Comparison
from playground.ui import filling, share
from playground.ui.controls import Asked
from playground.ui.screen import Screen, results

logger = logging.getLogger(__name__)

DRAIN_HZ = 5  # an update costs server and browser some 20 ms together, maybe of the cores that decode
OURS = "Something went wrong inside the playground, not in what you typed. Run again; the server's log says more."
BackendFor = Callable[[Pair], Backend]
REPEATS = 3
LARGE = 1e9  # bytes to download from which it is asked first


class Run(Protocol):
    """Work under way: a `BackgroundRun`, or one in another process."""

    def stop(self) -> None: ...

    def drain(self, hz: float) -> Iterator[list[Event]]: ...


Start = Callable[[Pair, Work], Run]


class LargeDownload(PlaygroundError):
    """Nobody has agreed to this download yet."""

    def __init__(self, pair: Pair, size: float) -> None:
        super().__init__(
            f"{pair.title} is not on this machine: up to {gigabytes(size)} has to be downloaded first. Agree to it, or "
            "choose models that are ready."
        )
        self.size = size


@dataclass(frozen=True)
class Offer:
    """A download of at most `size` bytes that a session was asked about, and the run that wants it."""

    size: float
    every: bool


@dataclass(frozen=True)
class Shown:
    """What a page shows. `chosen`: the name of the lane beside the baseline. `pair`: what ran it on this page, so that
    it can run again; None for a trace from a file."""

    comparison: Comparison
    chosen: str
    pair: Pair | None = None

    def screen(self) -> Screen:
        screen = Screen()
        screen.load(self.comparison)
        screen.choose(self.chosen)
        screen.repeatable = self.repeatable
        return screen

    @property
    def repeatable(self) -> bool:
        return self.pair is not None and all(trace.finish != "stopped" for trace in self.comparison.lanes)


class Events:
    """Handlers that share the queue for the device and know who is running what.

    What they return is in the order of the page's outputs: the stage, `results` and what can be shared and saved, the
    buttons; where a comparison fills the controls, those come last.

    Args:
        backend_for: the backend that runs a pair's lanes.
        fit_of: whether a pair can run here.
        elsewhere: starts runs in place of the threads and the queue of this process.
    """

    def __init__(
        self,
        pairs: dict[str, Pair],
        backend_for: BackendFor,
        fit_of: Callable[[Pair], Fit],
        elsewhere: Start | None = None,
    ) -> None:
        self._pairs = pairs
        self._elsewhere = elsewhere
        self._fit_of = fit_of
        self._offers: dict[str, Offer] = {}
        self._backend_for = backend_for
        self._queue = DeviceQueue()
        self._runs: dict[Run, str] = {}  # whose it is
        self._stopped: set[str] = set()  # sessions that pressed Stop since they pressed Run: maybe before it began

    def begin(self, session: str) -> tuple[Any, ...]:
        """Run was pressed: the last results go, Stop can be pressed."""
        self._stopped.discard(session)
        return (*self._outcome(None), *_buttons(running=True))

    def begin_repeat(self, session: str) -> tuple[Any, ...]:
        """The results stay until there are better ones."""
        self._stopped.discard(session)
        return _buttons(running=True)

    def stream(
        self, session: str, asked: Asked, *, every: bool = False, agreed: float = LARGE
    ) -> Iterator[tuple[Any, ...]]:
        """Runs one comparison, with `every` of all drafters: the stage's value as it changes and, at last, what is
        shown (None without a comparison). `agreed`: the largest download, in bytes."""
        try:
            pair, lanes, request = asked.resolve(self._pairs, every=every)
        except PlaygroundError as problem:
            screen = Screen()
            screen.end(str(problem))
            yield screen.value(), None
            return
        screen = Screen("waiting", limit=request.max_new_tokens, lanes=len(lanes))
        yield screen.value(), None
        yield from self._stream(session, pair, screen, Compare(lanes, request, skip=every), agreed)
        if screen.download:
            self._offers[session] = Offer(screen.download, every)

    def accept(self, session: str, asked: Asked) -> Iterator[tuple[Any, ...]]:
        """The download that was offered is wanted: as `stream`. A larger one is asked about again."""
        offer = self._offers.pop(session, Offer(LARGE, every=False))
        yield from self.stream(session, asked, every=offer.every, agreed=offer.size)

    def repeat(self, session: str, shown: Shown) -> Iterator[tuple[Any, ...]]:
        """Runs all lanes again, interleaved; as `stream`."""
        pair = shown.pair
        assert pair, "a trace from a file has no button for it"
        yield from self._stream(session, pair, shown.screen(), Repeat(shown.comparison, REPEATS))

    def choose(self, shown: Shown, name: str) -> tuple[Any, ...]:
        """Another lane beside the baseline: the stage, what is shown, the results."""
        shown = replace(shown, chosen=name)
        return (shown.screen().value(), shown, *self._outcome(shown))

    def _stream(
        self, session: str, pair: Pair, screen: Screen, work: Work, agreed: float = float("inf")
    ) -> Iterator[tuple[Any, ...]]:
        error = ""
        screen.repeatable = False
        try:
            with self._running(session, pair, work, agreed) as run:
                for batch in run.drain(DRAIN_HZ):
                    for event in batch:
                        screen.take(event)
                    if batch:
                        yield screen.value(), gr.skip()
        except PlaygroundError as problem:
            error = str(problem)
            screen.download = problem.size if isinstance(problem, LargeDownload) else 0
        except Exception:
            logger.exception("a comparison failed")
            error = OURS
        screen.end(error)
        shown = Shown(screen.comparison, screen.chosen, pair) if screen.comparison else None
        screen.repeatable = shown is not None and shown.repeatable
        yield screen.value(), shown

    def finish(self, shown: Shown | None) -> tuple[Any, ...]:
        """A run has ended: what there is to say of it."""
        return (*self._outcome(shown), *_buttons(running=False))

    def stop(self, session: str) -> None:
        """Ends this browser session's run within one round. What it decoded stays."""
        self._stopped.add(session)
        self._end(session)

    def leave(self, session: str) -> None:
        """The tab was closed or loaded anew, or the endpoint's client is gone. Gradio closes a tab's generator then,
        but not always at once, and tells the endpoint nothing."""
        self._stopped.discard(session)
        self._offers.pop(session, None)
        self._end(session)

    def clear(self) -> tuple[Any, ...]:
        return (Screen().value(), None, *self._outcome(None))

    def open(self, data: bytes) -> tuple[Any, ...]:
        """Shows an uploaded trace, with its prompt and settings; what was there stays where it is none."""
        try:
            comparison = export.load(data)
        except PlaygroundError as problem:
            # The page takes the text as HTML, and it quotes the file.
            raise gr.Error(html.escape(str(problem), quote=False), print_exception=False) from None
        screen = Screen()
        screen.opened(comparison)
        shown = Shown(comparison, screen.chosen)
        values = filling.from_comparison(comparison.beside(screen.chosen), self._pairs)
        return (screen.value(), shown, *self._outcome(shown), *filling.updates(values, self._pairs))

    def restore(self, shown: Shown) -> tuple[Any, ...]:
        """Shows a run of this session again, with its prompt and settings; as `open`."""
        values = filling.from_comparison(shown.comparison.beside(shown.chosen), self._pairs, own=True)
        return (shown.screen().value(), shown, *self._outcome(shown), *filling.updates(values, self._pairs))

    def compare(self, session: str, asked: Asked) -> dict:
        """The endpoint: one comparison as `export` writes it.

        Raises:
            gr.Error: it cannot be had, in words.
        """
        try:
            pair, lanes, request = asked.resolve(self._pairs)
            with self._running(session, pair, Compare(lanes, request)) as run:
                done = [event for batch in run.drain(DRAIN_HZ) for event in batch if isinstance(event, Finished)]
            if not done:
                raise PlaygroundError("The run was stopped before a lane began.")
            return export.to_json(done[0].comparison)
        except PlaygroundError as problem:
            raise gr.Error(str(problem), print_exception=False) from None
        except Exception:
            logger.exception("a comparison failed")
            raise gr.Error(OURS, print_exception=False) from None

    @contextmanager
    def _running(self, session: str, pair: Pair, work: Work, agreed: float = float("inf")) -> Iterator[Run]:
        run = self._elsewhere(pair, work) if self._elsewhere else self._start(pair, work, agreed)
        self._runs[run] = session
        try:
            if session in self._stopped:
                run.stop()
            yield run
        finally:
            run.stop()
            del self._runs[run]

    def _check(self, pair: Pair, agreed: float) -> None:
        """Raises:
        PlaygroundError: the pair cannot run here, or needs a larger download than was agreed to.
        """
        fit = self._fit_of(pair)
        if fit.state in ("too large", "gated"):
            raise PlaygroundError(f"{pair.title} cannot run here. {fit.sentence}")
        if fit.download > agreed:
            raise LargeDownload(pair, fit.download)

    def _end(self, session: str) -> None:
        for run, owner in tuple(self._runs.items()):
            if owner == session:
                run.stop()

    def _outcome(self, shown: Shown | None) -> tuple[Any, ...]:
        """The results, the Share menu's Markdown, the HTML file and the trace."""
        if shown is None:
            return (*results(None), "", _saved("", None), _saved("", None))
        comparison = shown.comparison
        lane = comparison.others[0].lane
        drafter = lane.drafter if len(comparison.others) == 1 else "all-drafters"
        name = f"trace-{lane.target[-60:]}-{drafter[:20]}"
        text, page = share.results(comparison, shown.chosen, self._pairs)
        trace = json.dumps(export.to_json(comparison)).encode()
        return (
            *results(comparison, shown.chosen),
            text,
            _saved(f"{name}.html", page),
            _saved(f"{name}.json", trace),
        )

    def _start(self, pair: Pair, work: Work, agreed: float) -> BackgroundRun:
        def in_turn(stop: threading.Event, emit: Callable[[Event], None]) -> None:
            with self._queue.turn(stop, lambda ahead: emit(Progress(_waiting(ahead)))) as mine:
                if mine:
                    self._check(pair, agreed)
                    work({LOCAL: self._backend_for(pair)}, stop=stop, emit=emit)

        return BackgroundRun(in_turn)


def _waiting(ahead: int) -> str:
    place = ahead + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"You are {place}{ending} in the queue."


def _buttons(*, running: bool) -> tuple[Any, ...]:
    """Run, Stop, Which drafter?, Clear, Open, and the strip of the last runs."""
    idle, busy = gr.update(interactive=not running), gr.update(interactive=running)
    return idle, busy, idle, idle, idle, idle


def _saved(name: str, data: bytes | None) -> dict[str, Any]:
    """An update of a button that downloads the data; it cannot be pressed without any."""
    if data is None:
        return gr.update(value=None, interactive=False)
    path = save_bytes_to_cache(data, re.sub(r"[^\w.-]+", "-", name), get_upload_folder())
    return gr.update(value=path, interactive=True)
