"""Event handlers of the Compare page: they drain a run's events and never touch a tensor.

A run waits in the queue and decodes in a thread of its own. It is stopped by its session's Stop, by an error, by a
limit, or when nobody reads its events any more. A large download starts only after the user has agreed to it.
"""

from __future__ import annotations

import html
import pickle
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import gradio as gr
from anyio import CapacityLimiter, to_thread

from playground import export, metrics
from playground.backends.base import Backend
from playground.backends.connect import NONE, Servers
from playground.errors import PlaygroundError, check
from playground.experiments.events import Event, Finished, LaneSkipped, Progress, Watch
from playground.experiments.history import new_id
from playground.experiments.session import Session
from playground.experiments.work import Compare, Repeat, Work
from playground.format import gigabytes
from playground.hosting.access import Access, visitor
from playground.hosting.turns import Reader, Turn, Turns
from playground.lane import LOCAL, Lane, Request
from playground.models.fit import LARGE, Fit
from playground.presets import Pair
from playground.trace import Comparison, Trace
from playground.ui.compare import prefill, rendered
from playground.ui.compare.controls import CompareOptions
from playground.ui.compare.shown import Held, Opened, Screen, Shown, goes_on_with
from playground.ui.compare.why import NOTHING
from playground.ui.wiring import Named
from playground.views.stage import Status


class LargeDownload(PlaygroundError):
    """A download that needs the user's agreement and does not have it yet."""

    def __init__(self, pair: Pair, size: float) -> None:
        super().__init__(
            f"{pair.title} is not on this machine: up to {gigabytes(size)} has to be downloaded first. Agree to it "
            "on the page, or choose models that are ready."
        )
        self.size = size


@dataclass(frozen=True)
class Offer:
    """A download of at most `size` bytes that a session was asked to agree to, and the run that needs it."""

    size: float
    every: bool


def check_fit(pair: Pair, fit: Fit, agreed: float) -> None:
    """Checks that a pair can run here without an unexpected download.

    Raises:
        PlaygroundError: the pair cannot run here, or needs a larger download than was agreed to.
    """
    if fit.state in ("too large", "gated"):
        raise PlaygroundError(f"{pair.title} cannot run here. {fit.sentence}")
    if fit.download > agreed:
        raise LargeDownload(pair, fit.download)


BackendFor = Callable[[Pair], Backend]
NOT_RUN = "These settings have no result here yet. Press Run: both lanes then fill in."
UNREAD = "Nobody reads what this session is sent. Reload the page."
REPEATS = 3
READERS = 4  # threads that read what was asked for

Ready = tuple[Pair, Callable[[], Screen], Work]  # to be run; the second makes the stage on which it begins
Elsewhere = Callable[[Pair, Work, Watch], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Going:
    """What a tab that is loaded anew has to know of its run.

    Attributes:
        fresh: makes the stage on which the run begins.
        name: its id in the history.
        before: the run to show again if this one has no result.
        began: when its reader's wait began, by `time.monotonic`.
    """

    pair: Pair
    work: Work
    fresh: Callable[[], Screen]
    name: str
    before: Shown | None
    began: float

    def screen(self) -> Screen:
        screen = self.fresh()
        screen.began, screen.repeatable, screen.goes_on = self.began, False, False
        return screen


@dataclass(frozen=True)
class Decoding:
    """Runs work on a pair, as a `Session` asks for it.

    Attributes:
        backend_for: returns the backend that runs a pair's lanes.
        fit_of: returns whether a pair can run here.
        elsewhere: decodes instead of this process, and without its queue for the device.
    """

    backend_for: BackendFor
    fit_of: Callable[[Pair], Fit]
    elsewhere: Elsewhere | None = None

    def __call__(self, pair: Pair | None, work: Work, watch: Watch, agreed: float = LARGE) -> None:
        """Runs the work, if the pair can run here. `agreed`: the largest download, in bytes.

        Raises:
            PlaygroundError: see `check_fit`; or the work raised it.
        """
        if pair is None:
            work({}, watch)
            return
        if any(lane.backend == LOCAL for lane in work.lanes):
            check_fit(pair, self.fit_of(pair), agreed)
        if self.elsewhere:
            self.elsewhere(pair, work, watch)
        else:
            work({LOCAL: self.backend_for(pair)}, watch)


class Handlers:
    """Handlers that know which browser session runs what.

    They return values by the names of the page's components; the components that they do not name do not change.

    Args:
        decoding: runs the comparisons.
        session: holds the queue for the device.
        access: what visitors may do.
    """

    def __init__(self, pairs: dict[str, Pair], decoding: Decoding, session: Session, access: Access) -> None:
        self._pairs, self._decoding, self._access = pairs, decoding, access
        self._offers: dict[str, Offer] = {}
        self.turns = Turns(access, session)
        self._readers, self._grammars = CapacityLimiter(READERS), CapacityLimiter(1)  # the others wait without a thread
        self._opened, self._files = Opened(access.limits.traces, access.limits.opens_each), CapacityLimiter(1)

    def begin(self, session: str) -> None:
        """Run was pressed: a Stop from now on ends the run that is to come."""
        self.turns.begin(session)

    def stream(
        self,
        session: str,
        options: CompareOptions,
        servers: Servers = NONE,
        *,
        every: bool = False,
        agreed: float = LARGE,
        address: str = "",
        tab: str = "",
    ) -> AsyncGenerator[Named, None]:
        """Runs one comparison. Yields the stage's value as it changes, and at last the comparison that is shown (None
        without one).

        The lanes of `servers` are compared with those of this process; two servers are compared with each other.

        Args:
            every: whether to run a lane for each drafter.
            agreed: the largest download without another question, in bytes.
            address: the browser's IP address.
            tab: the secret name of the browser's tab, which finds the run again; see `rejoin`.
        """

        async def read() -> Ready:
            pair, lanes, request = await self._resolved(session, address, options, every=every)
            if servers.urls:
                self._access.check_servers()
            local = lanes if len(servers.urls) < 2 else []
            work = Compare(local, request, skip=every, servers=replace(servers, lookahead=lanes[-1].lookahead))
            return pair, partial(_waiting, work), work

        return self._stream(session, read, agreed, address, tab)

    def accept(
        self,
        session: str,
        asked: CompareOptions,
        servers: Servers = NONE,
        *,
        address: str = "",
        tab: str = "",
    ) -> AsyncGenerator[Named, None]:
        """Runs the comparison after the user has agreed to the offered download, like `stream`. A larger download needs
        a new agreement."""
        offer = self._offers.pop(session, Offer(LARGE, every=False))
        return self.stream(session, asked, servers, every=offer.every, agreed=offer.size, address=address, tab=tab)

    def repeat(
        self, session: str, shown: Shown | None, *, address: str = "", tab: str = ""
    ) -> AsyncGenerator[Named, None]:
        """Runs all lanes again, interleaved. Yields like `stream`."""
        if shown is None or shown.pair is None:
            raise _nothing_shown()
        ready = shown.pair, shown.screen, Repeat(shown.comparison, REPEATS)

        async def read() -> Ready:
            return ready

        return self._stream(session, read, address=address, tab=tab, name=shown.id)

    def turn(
        self, session: str, shown: Shown | None, message: str, *, address: str = "", tab: str = ""
    ) -> AsyncGenerator[Named, None]:
        """Adds a turn with this message to the conversation that is shown, in its two lanes. Yields like `stream`. Both
        lanes get the baseline's answer as their history."""
        if shown is None:
            raise _nothing_shown()
        pair = shown.pair or goes_on_with(shown.comparison, shown.chosen, self._pairs)
        if pair is None:
            raise _nothing_shown()
        measured = metrics.measured(shown.comparison, shown.chosen)

        async def read() -> Ready:
            with self.turns.reading(session, address):
                self._access.check_length(message)
                request = await to_thread.run_sync(self._next, measured.base, message, limiter=self._readers)
                await self._read_grammar(request)
            work = Compare([measured.base.lane, measured.ours.lane], request, baseline=measured.base.lane.name)
            return pair, partial(_waiting, work), work

        return self._stream(session, read, address=address, tab=tab, before=shown)

    def _next(self, last: Trace, message: str) -> Request:
        request = last.request.next_turn(metrics.answered(last), message)
        self._access.check_request(request)
        return request

    async def choose(self, shown: Shown | None, name: object, session: str = "", address: str = "") -> Named:
        """Shows another lane with the baseline: returns the stage, what is shown, and the results."""
        if shown is None:
            raise _nothing_shown()

        def draw(comparison: Comparison) -> Named:
            if name not in [trace.lane.name for trace in comparison.others]:
                raise _nothing_shown()
            return self._shown(replace(shown, held=comparison, chosen=str(name)))

        drawn = await self._on(shown, session, address, draw)
        chosen = replace(shown, chosen=str(name))
        return drawn | {"shown": chosen} | _drafter_of(chosen)

    def _screen(self, shown: Shown) -> Screen:
        screen = shown.screen()
        screen.goes_on = screen.goes_on or goes_on_with(shown.comparison, shown.chosen, self._pairs) is not None
        return screen

    def _shown(self, shown: Shown) -> Named:
        return {"stage": self._screen(shown).packed(), "shown": shown, **self._outcome(shown)}

    async def _stream(
        self, session: str, read: Callable[[], Awaitable[Ready]], agreed: float = float("inf"), address: str = "",
        tab: str = "", name: str = "", before: Shown | None = None,
    ) -> AsyncGenerator[Named, None]:  # fmt: skip
        """Runs what `read` returns. `name`: the run's id, if it has one. `before`: the run to show again if this one
        has no result."""
        began = time.monotonic()
        try:
            pair, fresh, work = await read()
            going = Going(pair, work, fresh, name or new_id(), before, began)
            yield {"stage": going.screen().packed()}
            act = partial(self._decoding, pair, work, agreed=agreed)
            here = self._decoding.elsewhere is None
            turn = self.turns.start(session, address, act, device=here, tab=tab, about=going)
        except PlaygroundError as problem:
            screen = self._screen(before) if before else Screen()
            screen.end(self._access.without_secrets(str(problem)))
            yield {"stage": screen.packed()}
            return
        async with aclosing(self._drawn(session, address, going, turn)) as updates:
            async for update in updates:
                yield update

    async def rejoin(self, session: str, *, tab: str, address: str = "") -> AsyncGenerator[Named, None]:
        """Shows the run again that a tab started before it was loaded anew; nothing if it was given up."""
        if turn := self.turns.of_tab(tab):
            async with aclosing(self._drawn(session, address, turn.about, turn)) as updates:
                async for update in updates:
                    yield update

    async def _drawn(self, session: str, address: str, going: Going, turn: Turn | None) -> AsyncGenerator[Named, None]:
        """Yields the stage as a run changes it, and at last the comparison that is shown. `turn`: None for a run that
        was stopped before it began."""
        screen, before, error = going.screen(), going.before, ""

        def taken(batch: Sequence[Event]) -> Named:
            for event in batch:
                screen.take(self._told(event))
            return {"stage": screen.packed()}

        try:
            async with aclosing(self.turns.follow(turn, session, address) if turn else _nothing()) as batches:
                async for batch in batches:
                    yield await to_thread.run_sync(taken, batch)
        except LargeDownload as problem:
            error, screen.download = self._access.without_secrets(str(problem)), problem.size
            self._offers[session] = Offer(problem.size, every=isinstance(going.work, Compare) and going.work.skip)
        except PlaygroundError as problem:
            error = self._access.without_secrets(str(problem))
        name = going.name
        if before and screen.comparison is None:
            screen, name = self._screen(before), before.id
            screen.status = Status("Stopped before a lane had output. The conversation is as it was.")
        screen.end(error)
        shown = Shown(screen.comparison, screen.chosen, going.pair, name) if screen.comparison else None
        screen.repeatable = screen.goes_on = shown is not None and shown.repeatable
        drawn = {"stage": await to_thread.run_sync(screen.packed)}
        # Without a round the page goes on showing what it showed before.
        yield drawn | {"shown": shown} if shown or any(view.rounds for view in screen.lanes) else drawn

    async def save(self, shown: Shown | None, form: object, page: str, session: str = "", address: str = "") -> Named:
        """Writes what is shown to a file and returns an update of the button that downloads it. `form`, `page`: see
        `rendered.write`."""
        if shown is None or form not in rendered.FORMS:
            raise _nothing_shown()

        def write(comparison: Comparison) -> Any:
            return rendered.write(comparison, shown.chosen, str(form), page, self._access.limits.files)

        return {"file": await self._on(shown, session, address, write)}

    def finish(self, shown: Shown | None) -> Named:
        """Returns what the page shows under a run that has ended: its details, and how it can be shared."""
        if not shown:
            return {"details": f"<p>{NOTHING}</p>", "menu": [], "save": gr.update(interactive=False)}
        return self._outcome(shown) | _drafter_of(shown)

    def stop(self, session: str) -> None:
        """Ends this browser session's run within one round. What it decoded remains."""
        self.turns.stop(session)

    def leave(self, session: str) -> None:
        """Ends a session whose tab was closed or reloaded."""
        self._offers.pop(session, None)
        self.turns.leave(session)

    async def open(self, data: bytes | None, session: str = "", address: str = "") -> Named:
        """Shows an uploaded trace, with its prompt and settings. The page does not change without a file, or if it is
        no trace."""

        def read() -> tuple[bytes, Named]:
            comparison = export.load(data or b"", self._access.limits.trace_tokens)
            return pickle.dumps(comparison), self.show(comparison, "a file")

        packed, drawn = await self._in_turn(session, address, read)
        return drawn | {"shown": Shown(self._opened.keep(packed), drawn["shown"].chosen)}

    def show(self, comparison: Comparison, source: str, *, own: bool = False) -> Named:
        """Shows a comparison with its prompt and settings. `own`: it is this server's, plays by itself, and also fills
        in models that no preset has. `source`: where it comes from, in words."""
        screen = Screen()
        screen.opened(comparison, source)
        screen.replay = "loop" if own else ""
        screen.goes_on = goes_on_with(comparison, screen.chosen, self._pairs) is not None
        shown = Shown(comparison, screen.chosen)
        values = prefill.from_lane(metrics.measured(comparison, screen.chosen).ours, self._pairs, own=own)
        drawn = {"stage": screen.packed(), "shown": shown, **self._outcome(shown)}
        return drawn | prefill.updates(values, self._pairs)

    def show_none(self, problem: str = "") -> Named:
        """Shows no run, and why: the problem, or that the settings of the address have no result yet."""
        status = Status(self._access.without_secrets(problem), "error") if problem else Status(NOT_RUN)
        return {"stage": Screen.alone(status).packed(), "shown": None, **self.finish(None)}

    def restore(self, shown: Shown | None) -> Named:
        """Shows a run of this session again, with its prompt and settings."""
        if shown is None:
            raise _nothing_shown()
        values = prefill.from_lane(metrics.measured(shown.comparison, shown.chosen).ours, self._pairs, own=True)
        return self._shown(shown) | prefill.updates(values, self._pairs)

    async def compare(self, session: str, asked: CompareOptions, *, address: str = "") -> Shown:
        """Runs one comparison for the endpoint, and shows the fastest lane with the baseline.

        Raises:
            gr.Error: the comparison failed or was refused.
        """
        try:
            pair, lanes, request = await self._resolved(session, address, asked)
            act, here = partial(self._decoding, pair, Compare(lanes, request)), self._decoding.elsewhere is None
            async with aclosing(self.turns.run(session, address, act, device=here)) as batches:
                done = [event async for batch in batches for event in batch if isinstance(event, Finished)]
            if not done:
                raise PlaygroundError("The run was stopped before a lane began.")
            comparison = done[0].comparison
            return Shown(comparison, metrics.ranked(comparison)[0].ours.lane.name, pair)
        except PlaygroundError as problem:
            raise gr.Error(self._access.without_secrets(str(problem)), print_exception=False) from None

    def _told(self, event: Event) -> Event:
        """Returns the event with its sentences as visitors may read them."""
        match event:
            case Progress():
                return replace(event, label=self._access.without_secrets(event.label))
            case LaneSkipped():
                return replace(event, reason=self._access.without_secrets(event.reason))
        return event

    async def _resolved(
        self, session: str, address: str, options: CompareOptions, *, every: bool = False
    ) -> tuple[Pair, list[Lane], Request]:
        """Reads what the user typed in a thread, because it can take long and the event loop serves everybody.

        Raises:
            PlaygroundError: it cannot be run, or exceeds the limits of visitors.
        """

        def resolve() -> tuple[Pair, list[Lane], Request]:
            pair, lanes, request = options.resolve(self._pairs, every=every, typed=self._access.typed)
            self._access.check_request(request)
            return pair, lanes, self._access.alone(request)

        with self.turns.reading(session, address):
            # The texts of a conversation are counted once they are read: its JSON is longer.
            self._access.check_length({name: value for name, value in options.values.items() if name != "messages"})
            pair, lanes, request = await to_thread.run_sync(resolve, limiter=self._readers)
            await self._read_grammar(request)
        return pair, lanes, request

    async def _read_grammar(self, request: Request) -> None:
        if request.constraint:
            await to_thread.run_sync(self._access.check_grammar, request, limiter=self._grammars)

    def _outcome(self, shown: Shown) -> Named:
        return rendered.outcome(shown.comparison, shown.chosen, self._pairs)

    async def _on(self, shown: Shown, session: str, address: str, function: Callable[[Comparison], T]) -> T:
        """Calls a function of the comparison that is shown, in a thread."""
        if not isinstance(shown.held, Held):
            return await to_thread.run_sync(function, shown.held)
        packed = shown.held.packed
        return await self._in_turn(session, address, lambda: function(pickle.loads(packed)))

    async def _in_turn(self, session: str, address: str, function: Callable[[], T]) -> T:
        """Calls a function of a trace from a file in a thread, one at a time: a long one takes a second of Python.

        Raises:
            gr.Error: the function failed or was refused.
        """
        try:
            with self._opened.opening(visitor(address, session)):
                if self._access.public:
                    check(await Reader().comes(), UNREAD)
                return await to_thread.run_sync(function, limiter=self._files)
        except PlaygroundError as problem:
            # The page takes the text as HTML, and it quotes the file.
            words = html.escape(self._access.without_secrets(str(problem)), quote=False)
            raise gr.Error(words, print_exception=False) from None


def _drafter_of(shown: Shown) -> Named:
    """Returns an update of the drafter's menu to the lane that is shown, where several drafters ran here."""
    if shown.pair is None or len(shown.comparison.others) < 2:
        return {}
    lane = next(trace.lane for trace in shown.comparison.others if trace.lane.name == shown.chosen)
    return {"drafter": gr.update(value=lane.drafter)} if lane.drafter in shown.pair.drafters else {}


def _nothing_shown() -> gr.Error:
    """Returns the error for a run that was dropped, and for programs that send events which no page sends."""
    return gr.Error("This run is no longer kept. Run it again.", print_exception=False)


async def _nothing() -> AsyncGenerator[list[Event], None]:
    """Yields no events."""
    return
    yield


def _waiting(work: Compare) -> Screen:
    """Returns the stage of a comparison that waits to run."""
    screen = Screen("waiting", limit=work.request.max_new_tokens, lanes=work.count)
    if work.skip:
        for view, lane in zip(screen.lanes, work.lanes, strict=False):
            view.name = lane.name  # the table of drafters has a row for each from the start
    screen.ask(work.request)
    screen.status = Status("Starting …", "busy")
    return screen
