"""Runs of all visitors: how many each may have, and what ends them. A waiting run holds no thread.

A run also ends when nobody reads its events any more; one that a tab of a browser started continues for RETURNS_S, so
that the tab finds it again after a reload. Gradio itself stops a generator only after its next yield, and an endpoint's
never.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from playground.errors import PlaygroundError, check
from playground.experiments.events import Event, Watch
from playground.experiments.session import Run, Session
from playground.hosting.access import Access, visitor
from playground.progress import Progress

ARRIVES_S = 5.0  # seconds within which a page reads an answer
PATIENCE = 6  # checks, of which a run makes two or three a second


class Reader:
    """The reader of the event that is being handled; made inside its handler."""

    def __init__(self) -> None:
        blocks, event_id = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
        self._queue = blocks._queue if blocks else None
        self._event = None if self._queue is None else self._queue.event_ids_to_events.get(event_id or "")
        self._oldest, self._in_vain = None, 0

    def left(self) -> bool:
        """Returns whether the connection was closed, or the last PATIENCE checks found the same message unread. Checks
        are counted instead of seconds: while a model loads, the server may serve nobody for seconds."""
        if self._queue is None or self._event is None:  # not called through Gradio's queue
            return False
        messages = self._queue.pending_messages_per_session.get(self._event.session_hash)
        oldest = messages._queue[0] if messages and messages.qsize() else None
        self._in_vain = self._in_vain + 1 if oldest is not None and oldest is self._oldest else 0
        self._oldest = oldest
        return not self._event.alive or self._in_vain > PATIENCE

    async def comes(self) -> bool:
        """Returns whether somebody reads what the session was sent so far, within ARRIVES_S. Gradio stores all messages
        that nobody reads."""
        deadline = time.monotonic() + ARRIVES_S
        while self._queue is not None and self._event is not None:
            messages = self._queue.pending_messages_per_session.get(self._event.session_hash)
            if messages is not None and messages.qsize() == 0:
                break
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True


def address_of(request: gr.Request) -> str:
    """Returns the client's IP address, or its nearest proxy's; "" if unknown."""
    return request.client.host if request.client else ""


HZ = 3  # updates per second; each takes time of server and browser
NEAR_HZ = 1.25  # where the browser shares the cores that decode
FAR = (
    10  # places in the queue; further back only every tenth is shown, since each update takes the server a millisecond
)
REFUSED_S = 5.0  # seconds for which a refused request counts as a run of its visitor
REMEMBERED = 1000  # sessions that pressed Run, and whose run has not arrived yet
RETURNS_S = 15.0  # seconds that a run waits for a tab that is loaded anew


@dataclass(eq=False)
class Turn:
    """A run that waits, decodes or has just ended.

    Attributes:
        visitor: for whom it counts.
        tab: the secret name of the browser's tab that started it; "" for programs.
        about: what a tab that finds it again has to know of it.
        sessions: those that read it.
    """

    visitor: str
    run: Run
    tab: str = ""
    about: Any = None
    sessions: set[str] = field(default_factory=set)


class Turns:
    """The runs of all browser sessions, which share the device's queue. All methods are called in one event loop."""

    def __init__(self, access: Access, queue: Session) -> None:
        self._access, self._queue = access, queue
        self._turns: list[Turn] = []
        self._reading: list[str] = []  # one entry per request that is being read
        self._refused: list[tuple[float, str]] = []  # the time until which a refusal counts, and the visitor
        self._begun: OrderedDict[str, bool] = OrderedDict()  # by session: whether Stop was pressed since Run

    def begin(self, session: str) -> None:
        """Records that Run was pressed and a run will come. An earlier Stop no longer counts."""
        self._begun.pop(session, None)
        self._begun[session] = False
        if len(self._begun) > REMEMBERED:
            self._begun.popitem(last=False)

    def stop(self, session: str) -> None:
        """Ends the session's runs within one round, and the announced one."""
        if session in self._begun:
            self._begun[session] = True
        for turn in self._turns:
            if session in turn.sessions:
                turn.run.stop()

    def leave(self, session: str) -> None:
        """Records that nobody reads the session's runs any more."""
        self._begun.pop(session, None)
        for turn in [*self._turns]:
            self._left(turn, session)

    @contextmanager
    def reading(self, session: str, address: str) -> Iterator[None]:
        """Counts a visitor's request as one of its runs while it is being read. Refusals count for REFUSED_S longer.

        Raises:
            PlaygroundError: the visitor's runs, or all runs, are too many.
        """
        name = visitor(address, session)
        self._admit(name)
        self._reading.append(name)
        try:
            yield
        except PlaygroundError:
            self._refused.append((time.monotonic() + REFUSED_S, name))
            raise
        finally:
            self._reading.remove(name)

    def start(
        self,
        session: str,
        address: str,
        work: Callable[[Watch], object],
        *,
        device: bool,
        tab: str = "",
        about: Any = None,
    ) -> Turn | None:
        """Starts a run of the work, or lets it wait for the device. Returns None if Stop was pressed meanwhile.

        Args:
            address: the IP address of the session's browser.
            device: whether the run waits for the device of this machine.
            tab, about: see `Turn`.

        Raises:
            PlaygroundError: the visitor's runs, or all runs, are too many.
        """
        name, stopped = visitor(address, session), self._begun.pop(session, False)
        self._admit(name)
        if stopped:
            return None
        turn = Turn(name, Run(work), tab, about, {session})
        self._turns.append(turn)
        self._queue.add(turn.run) if device else turn.run.begin()
        return turn

    async def run(
        self, session: str, address: str, work: Callable[[Watch], object], *, device: bool
    ) -> AsyncGenerator[list[Event], None]:
        """Starts a run for a program, and yields what `follow` does."""
        if turn := self.start(session, address, work, device=device):
            async with aclosing(self.follow(turn, session, address)) as batches:
                async for batch in batches:
                    yield batch

    def of_tab(self, tab: str) -> Turn | None:
        """Returns the newest run that a tab started and that was not given up; None if there is none."""
        return next((turn for turn in reversed(self._turns) if tab and turn.tab == tab), None)

    async def follow(self, turn: Turn, session: str, address: str) -> AsyncGenerator[list[Event], None]:
        """Yields a run's events from its beginning, in batches, HZ times a second, or NEAR_HZ to this machine.

        Raises:
            PlaygroundError: the run failed, waited or took too long.
        """
        run, reader = turn.run, Reader()
        end, pause = asyncio.wrap_future(run.end), 1 / (NEAR_HZ if _near(address) else HZ)
        place, refused, since, limits = "", "", time.monotonic(), self._access.limits
        try:
            turn.sessions.add(session)
            for batch in run.batches():
                if (now := _place(self._queue.ahead(run))) and now != place:
                    batch = [Progress(place := now)]
                if batch:
                    yield batch
                if run.began is None and time.monotonic() > since + limits.wait_s:
                    refused = self._access.no_turn
                elif run.began is not None and time.monotonic() > run.began + limits.run_s:
                    refused = self._access.out_of_time
                if refused:
                    run.stop()
                elif reader.left():
                    self._left(turn, session)
                else:
                    turn.sessions.add(session)
                await asyncio.wait([end], timeout=pause)
            check(not refused, refused)
        finally:
            self._left(turn, session)
            end.cancel()  # its event loop may be closed before the run ends

    def _left(self, turn: Turn, session: str) -> None:
        """Records that a session does not read the run any more. Without a reader it ends, or waits for its tab."""
        if session not in turn.sessions:
            return
        turn.sessions.discard(session)
        if turn.tab:
            asyncio.get_running_loop().call_later(RETURNS_S, self._give_up, turn)
        else:
            self._give_up(turn)

    def _give_up(self, turn: Turn) -> None:
        if not turn.sessions:
            turn.tab = ""
            turn.run.stop()

    def _admit(self, visitor: str) -> None:
        self._refused = [it for it in self._refused if it[0] > time.monotonic()]
        self._turns = [it for it in self._turns if it.sessions or it.tab or not it.run.end.done()]
        runs = [*(turn.visitor for turn in self._turns if not turn.run.end.done()), *self._reading]
        self._access.admit(runs.count(visitor) + [name for _, name in self._refused].count(visitor), len(runs))


def _near(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _place(ahead: int) -> str:
    if not ahead:
        return ""
    if ahead > FAR:
        return f"More than {(ahead - 1) // FAR * FAR} runs are ahead of yours."
    place = ahead + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"You are {place}{ending} in the queue."
