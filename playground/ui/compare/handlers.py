"""What happens when someone presses something. Handlers drain a run and never touch a tensor.

A run waits in the queue and decodes in a thread of its own. It is stopped by its session's Stop, by an error, by a
limit, or when nobody reads it any more.
"""

from __future__ import annotations

import html
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import gradio as gr
from anyio import to_thread

from playground import export
from playground.backends.base import Backend
from playground.backends.connect import NONE, Servers
from playground.errors import PlaygroundError, check
from playground.experiments.events import Event, Finished, LaneSkipped, Progress
from playground.experiments.history import new_id
from playground.experiments.runner import Run, Runner
from playground.experiments.watch import Watch
from playground.experiments.work import Compare, Repeat, Work
from playground.hosting.access import Access, visitor
from playground.hosting.readers import Reader
from playground.hosting.side_process import SideProcess
from playground.hosting.turns import Turns
from playground.lane import LOCAL, Lane, Request
from playground.models.fit import LARGE, Fit
from playground.presets import Pair
from playground.trace import Comparison
from playground.ui import panels
from playground.ui.compare import prefill, rendered
from playground.ui.compare.controls import Asked
from playground.ui.compare.download_offer import LargeDownload, Offer, check_fit
from playground.ui.compare.opened_traces import Held, Opened
from playground.ui.compare.screen import Screen, results

BackendFor = Callable[[Pair], Backend]
UNREAD = "Nobody reads what this session is sent. Reload the page."
REPEATS = 3
SHARED = 3  # of an outcome's values: the Share menu's Markdown, the HTML file and the trace

Elsewhere = Callable[[Pair, Work, Watch], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """What a page shows. `held`: the comparison, or where a trace from a file is kept. `chosen`: the name of the lane
    beside the baseline. `pair`: what ran it on this page, so that it can run again; None for a trace from a file. `id`:
    what the history calls it; a repeat keeps it."""

    held: Comparison | Held
    chosen: str
    pair: Pair | None = None
    id: str = field(default_factory=new_id)

    @property
    def comparison(self) -> Comparison:
        return self.held.comparison if isinstance(self.held, Held) else self.held

    def screen(self) -> Screen:
        screen = Screen()
        screen.load(self.comparison)
        screen.choose(self.chosen)
        screen.repeatable = self.repeatable
        return screen

    @property
    def repeatable(self) -> bool:
        return self.pair is not None and all(trace.finish != "stopped" for trace in self.comparison.lanes)


class Handlers:
    """Handlers that share the queue for the device and know who is running what.

    What they return is in the order of the page's outputs: the stage, `results` and what can be shared and saved, the
    buttons; where a comparison fills the controls, those come last.

    Args:
        backend_for: the backend that runs a pair's lanes.
        fit_of: whether a pair can run here.
        elsewhere: decodes in place of this process, and without its queue for the device.
        access: what visitors may do.
        runner: has the queue for the device.
    """

    def __init__(
        self,
        pairs: dict[str, Pair],
        backend_for: BackendFor,
        fit_of: Callable[[Pair], Fit],
        elsewhere: Elsewhere | None = None,
        access: Access = Access(),  # noqa: B008  # frozen
        runner: Runner | None = None,
    ) -> None:
        self._pairs = pairs
        self._elsewhere = elsewhere
        self._fit_of = fit_of
        self._offers: dict[str, Offer] = {}
        self._backend_for = backend_for
        self._access = access
        self.turns = Turns(access, runner or Runner())
        self._opened, self._other = Opened(access.limits.traces, access.limits.opens_each), SideProcess()

    def begin(self, session: str) -> tuple[Any, ...]:
        """Run was pressed: the last results go, Stop can be pressed."""
        self.turns.begin(session)
        return (*self._outcome(None), *_buttons(running=True))

    def begin_repeat(self, session: str) -> tuple[Any, ...]:
        """The results stay until there are better ones."""
        self.turns.begin(session)
        return _buttons(running=True)

    def stream(
        self,
        session: str,
        asked: Asked,
        servers: Servers = NONE,
        *,
        every: bool = False,
        agreed: float = LARGE,
        address: str = "",
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Runs one comparison, with `every` of all drafters: the stage's value as it changes and, at last, what is
        shown (None without a comparison). The lanes of `servers` run beside those of this process; two servers are
        compared with each other. `agreed`: the largest download, in bytes. `address`: the browser's."""
        try:
            pair, lanes, request = self._resolved(asked, every=every)
            if servers.urls:
                self._access.check_servers()
        except PlaygroundError as problem:
            return _refusal(problem)
        local = lanes if len(servers.urls) < 2 else []
        work = Compare(local, request, skip=every, servers=replace(servers, lookahead=lanes[-1].lookahead))
        screen = Screen("waiting", limit=request.max_new_tokens, lanes=work.count)
        return self._stream(session, pair, screen, work, agreed, address)

    def accept(
        self,
        session: str,
        asked: Asked,
        servers: Servers = NONE,
        *,
        address: str = "",
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """The download that was offered is wanted: as `stream`. A larger one is asked about again."""
        offer = self._offers.pop(session, Offer(LARGE, every=False))
        return self.stream(session, asked, servers, every=offer.every, agreed=offer.size, address=address)

    def repeat(self, session: str, shown: Shown | None, *, address: str = "") -> AsyncGenerator[tuple[Any, ...], None]:
        """Runs all lanes again, interleaved; as `stream`."""
        if shown is None or shown.pair is None:
            raise _nothing_shown()
        work = Repeat(shown.comparison, REPEATS)
        return self._stream(session, shown.pair, shown.screen(), work, address=address, name=shown.id)

    async def choose(self, shown: Shown | None, name: object, session: str = "", address: str = "") -> tuple[Any, ...]:
        """Another lane beside the baseline: the stage, what is shown, the results."""
        if shown is None:
            raise _nothing_shown()
        if isinstance(shown.held, Held):
            limits = self._access.limits
            found = await self._aside(
                session, address, rendered.beside, shown.held.packed, name, self._pairs, limits.files
            )
            if found is None:
                raise _nothing_shown()
            return (found[0], replace(shown, chosen=str(name)), *found[1:])
        if name not in [trace.lane.name for trace in shown.comparison.others]:
            raise _nothing_shown()
        return await to_thread.run_sync(self._shown, replace(shown, chosen=str(name)))

    def _shown(self, shown: Shown) -> tuple[Any, ...]:
        return (shown.screen().packed(), shown, *self._outcome(shown))

    async def _stream(
        self, session: str, pair: Pair, screen: Screen, work: Work, agreed: float = float("inf"), address: str = "",
        name: str = "",
    ) -> AsyncGenerator[tuple[Any, ...], None]:  # fmt: skip
        def taken(batch: Sequence[Event]) -> dict[str, Any]:
            for event in batch:
                screen.take(self._told(event))
            return screen.packed()

        error = ""
        screen.repeatable = False
        yield screen.packed(), gr.skip() if screen.comparison else None
        try:
            async with aclosing(self._run(session, address, pair, work, agreed)) as batches:
                async for batch in batches:
                    yield await to_thread.run_sync(taken, batch), gr.skip()
        except LargeDownload as problem:
            error, screen.download = self._access.told(str(problem)), problem.size
            self._offers[session] = Offer(problem.size, every=isinstance(work, Compare) and work.skip)
        except PlaygroundError as problem:
            error = self._access.told(str(problem))
        screen.end(error)
        shown = Shown(screen.comparison, screen.chosen, pair, name or new_id()) if screen.comparison else None
        screen.repeatable = shown is not None and shown.repeatable
        yield await to_thread.run_sync(screen.packed), shown

    def share(self, shown: Shown) -> tuple[Any, ...]:
        """What can be shared and saved of a run that the page shows from the start."""
        return self._outcome(shown)[-SHARED:]

    def finish(self, shown: Shown | None) -> tuple[Any, ...]:
        """A run has ended: what there is to say of it."""
        return (*self._outcome(shown), *_buttons(running=False))

    def stop(self, session: str) -> None:
        """Ends this browser session's run within one round. What it decoded stays."""
        self.turns.stop(session)

    def leave(self, session: str) -> None:
        """The tab was closed or loaded anew."""
        self._offers.pop(session, None)
        self.turns.leave(session)

    def clear(self) -> tuple[Any, ...]:
        return (Screen().packed(), None, *self._outcome(None))

    async def open(self, data: bytes | None, session: str = "", address: str = "") -> tuple[Any, ...]:
        """Shows an uploaded trace, with its prompt and settings; what was there stays where it is none, or no file."""
        limits = self._access.limits
        packed, chosen, (stage, *more) = await self._aside(
            session, address, rendered.file, data or b"", limits.trace_tokens, self._pairs, limits.files
        )
        return (stage, Shown(self._opened.keep(packed), chosen), *more)

    def show(self, comparison: Comparison, source: str, *, own: bool = False) -> tuple[Any, ...]:
        """A comparison with its prompt and settings; with `own`, also with models that no preset has. `source`: where
        it comes from, as the page says."""
        screen = Screen()
        screen.opened(comparison, source)
        shown = Shown(comparison, screen.chosen)
        values = prefill.from_comparison(comparison.beside(screen.chosen), self._pairs, own=own)
        return (screen.packed(), shown, *self._outcome(shown), *prefill.updates(values, self._pairs))

    def restore(self, shown: Shown | None) -> tuple[Any, ...]:
        """Shows a run of this session again, with its prompt and settings; as `open`."""
        if shown is None:
            raise _nothing_shown()
        values = prefill.from_comparison(shown.comparison.beside(shown.chosen), self._pairs, own=True)
        return (*self._shown(shown), *prefill.updates(values, self._pairs))

    async def compare(self, session: str, asked: Asked, *, address: str = "") -> dict:
        """The endpoint: one comparison as `export` writes it.

        Raises:
            gr.Error: it cannot be had, in words.
        """
        try:
            pair, lanes, request = self._resolved(asked)
            async with aclosing(self._run(session, address, pair, Compare(lanes, request))) as batches:
                done = [event async for batch in batches for event in batch if isinstance(event, Finished)]
            if not done:
                raise PlaygroundError("The run was stopped before a lane began.")
            return await to_thread.run_sync(export.to_json, done[0].comparison)
        except PlaygroundError as problem:
            raise gr.Error(self._access.told(str(problem)), print_exception=False) from None

    def _told(self, event: Event) -> Event:
        """The event with its sentences as visitors may read them."""
        match event:
            case Progress():
                return replace(event, label=self._access.told(event.label))
            case LaneSkipped():
                return replace(event, reason=self._access.told(event.reason))
        return event

    def prepared(self, pair: Pair | None, work: Work, agreed: float = LARGE) -> Callable[[Watch], None]:
        """What a run does: it checks that the pair can run here, and decodes. `agreed`: the largest download, in bytes.
        `pair`: None where servers alone decode."""

        def act(watch: Watch) -> None:
            if pair is None:
                work({}, watch)
                return
            if any(lane.backend == LOCAL for lane in work.lanes):
                check_fit(pair, self._fit_of(pair), agreed)
            if self._elsewhere:
                self._elsewhere(pair, work, watch)
            else:
                work({LOCAL: self._backend_for(pair)}, watch)

        return act

    def _run(
        self, session: str, address: str, pair: Pair, work: Work, agreed: float = LARGE
    ) -> AsyncGenerator[list[Event], None]:
        run = Run(self.prepared(pair, work, agreed))
        return self.turns.run(session, address, run, device=self._elsewhere is None)

    def _resolved(self, asked: Asked, *, every: bool = False) -> tuple[Pair, list[Lane], Request]:
        """Raises:
        PlaygroundError: it cannot be run, or is more than visitors may ask for.
        """
        pair, lanes, request = asked.resolve(self._pairs, every=every, typed=self._access.typed)
        self._access.check_request(request)
        return pair, lanes, request

    def _outcome(self, shown: Shown | None) -> tuple[Any, ...]:
        """The results, the Share menu's Markdown, the HTML file and the trace."""
        if shown is None:
            return (*results(None), "", panels.saved("", None), panels.saved("", None))
        return rendered.outcome(shown.comparison, shown.chosen, self._pairs, self._access.limits.files)

    async def _aside(self, session: str, address: str, function: Callable[..., T], *arguments: Any) -> T:
        """What a function of `drawn` makes of a trace from a file: of strangers' in another process.

        Raises:
            gr.Error: it cannot be had, in words.
        """
        try:
            with self._opened.opening(visitor(address, session)):
                if self._access.public:
                    check(await Reader().comes(), UNREAD)
                    return await self._other.call(function, *arguments)
                return await to_thread.run_sync(function, *arguments)
        except PlaygroundError as problem:
            # The page takes the text as HTML, and it quotes the file.
            words = html.escape(self._access.told(str(problem)), quote=False)
            raise gr.Error(words, print_exception=False) from None


def _nothing_shown() -> gr.Error:
    """For a run that is no longer kept, and for programs that press what no page shows."""
    return gr.Error("This run is no longer kept. Run it again.", print_exception=False)


async def _refusal(problem: PlaygroundError) -> AsyncGenerator[tuple[Any, ...], None]:
    screen = Screen()
    screen.end(str(problem))
    yield screen.packed(), None


def _buttons(*, running: bool) -> tuple[Any, ...]:
    """Run, Stop, Which drafter?, Clear, Open, and the strip of the last runs."""
    idle, busy = gr.update(interactive=not running), gr.update(interactive=running)
    return idle, busy, idle, idle, idle, idle
