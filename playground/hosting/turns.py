"""Runs of all visitors: they wait for the device, have their turn, and are stopped. Whoever waits holds no thread."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

from anyio import CapacityLimiter, to_thread

from playground.backends.device_queue import DeviceQueue
from playground.errors import check
from playground.experiments.background import Run
from playground.experiments.events import Event
from playground.hosting.access import Access, visitor
from playground.hosting.readers import Reader
from playground.progress import Progress

HZ = 3  # an update takes time of server and browser
NEAR_HZ = 2  # where the browser shares the cores that decode
FAR = 10  # places from which a run is told only every tenth: each time takes the server a millisecond
REMEMBERED = 1000  # sessions that pressed Run, and whose run has not come here yet
END: Any = object()


@dataclass(eq=False)
class Turn:
    """One run from the press of a button to its end. `run` is None while it waits."""

    session: str
    visitor: str
    stopped: bool
    run: Run | None = None

    def stop(self) -> None:
        self.stopped = True
        if self.run:
            self.run.stop()


class Turns:
    """To be used in one event loop."""

    def __init__(self, access: Access, queue: DeviceQueue) -> None:
        self._access = access
        self._queue = queue
        self._turns: list[Turn] = []
        # Threads of its own: on ZeroGPU a step waits for a GPU, and Gradio's static files need the usual ones.
        self._steps = CapacityLimiter(access.limits.runs)
        self._begun: OrderedDict[str, bool] = OrderedDict()  # sessions to whether they pressed Stop since

    @property
    def remembered(self) -> int:
        """Sessions whose run has not come here yet."""
        return len(self._begun)

    def begin(self, session: str) -> None:
        """Run was pressed, and the run will come: an earlier Stop counts no more."""
        self._begun.pop(session, None)
        self._begun[session] = False
        if len(self._begun) > REMEMBERED:
            self._begun.popitem(last=False)

    def stop(self, session: str) -> None:
        """Ends the session's runs within one round, and the one that is to come."""
        if session in self._begun:
            self._begun[session] = True
        self._end(session)

    def leave(self, session: str) -> None:
        """Nobody reads the session's runs any more."""
        self._begun.pop(session, None)
        self._end(session)

    async def run(
        self, session: str, address: str, start: Callable[[Callable[[], None]], Run]
    ) -> AsyncGenerator[list[Event], None]:
        """Waits for the device, then starts a run, and yields what happens in batches, HZ times a second, or
        NEAR_HZ to this machine.

        Args:
            address: where the session's browser is.
            start: `start(release)` starts the run. It, or the run, calls `release` when others may have the device.

        Raises:
            PlaygroundError: the visitor's runs, or all runs, are too many; the run took too long.
            Exception: whatever the run raised.
        """
        who, reader, stopped = visitor(address, session), Reader(), self._begun.pop(session, False)
        self._access.admit(sum(turn.visitor == who for turn in self._turns), len(self._turns))
        turn = Turn(session, who, stopped)
        ticket = self._queue.join()
        self._turns.append(turn)
        try:
            told = ""
            while (ahead := self._queue.ahead(ticket)) and not turn.stopped:
                if (place := _place(ahead)) != told:
                    yield [Progress(told := place)]
                await asyncio.sleep(1 / HZ)
                turn.stopped |= reader.left()
            if turn.stopped:
                return
            turn.run = start(partial(self._queue.leave, ticket))
            due = time.monotonic() + self._access.limits.run_s
            batches = turn.run.drain(NEAR_HZ if _near(address) else HZ)
            try:
                while (batch := await to_thread.run_sync(next, batches, END, limiter=self._steps)) is not END:
                    if batch:
                        yield batch
                    if reader.left() or time.monotonic() > due:
                        turn.stop()
            finally:
                await to_thread.run_sync(batches.close)  # which waits for another process
            check(time.monotonic() < due, self._access.out_of_time)
        finally:
            turn.stop()
            self._turns.remove(turn)
            if turn.run is None:
                self._queue.leave(ticket)

    def _end(self, session: str) -> None:
        for turn in self._turns:
            if turn.session == session:
                turn.stop()


def _near(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _place(ahead: int) -> str:
    if ahead > FAR:
        return f"More than {(ahead - 1) // FAR * FAR} runs are ahead of yours."
    place = ahead + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"You are {place}{ending} in the queue."
