"""Runs of work: each waits for the device, runs in a thread of its own, and ends. Waiting and watching need no thread.

Gradio resumes a generator only after it has sent the last yield; a decode loop that yields to the page would measure
the page. Here the work only appends to a list, which any number of watchers read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextvars import copy_context

from playground.errors import INTERNAL, PlaygroundError
from playground.experiments.events import Event, Watch

logger = logging.getLogger(__name__)


class Run:
    """A run of `work(watch)`, which is expected to return soon after it is stopped.

    Attributes:
        events: all events so far.
        began: by `time.monotonic`; None while it waits.
        end: done after the last event; its result is the error that the work raised, as a PlaygroundError.
    """

    def __init__(
        self,
        work: Callable[[Watch], object],
        ended: Callable[[Run, PlaygroundError | None], None] = lambda run, error: None,
    ) -> None:
        """`ended` is called before `end` is done."""
        self.events: list[Event] = []
        self.began: float | None = None
        self.end: futures.Future[PlaygroundError | None] = futures.Future()
        self.end.set_running_or_notify_cancel()  # so that no waiting reader can cancel it
        self.watch = Watch(self.events.append)
        self._work, self._ended = work, ended
        self._context = copy_context()  # Gradio's, which says who pressed the button
        self._once = threading.Lock()  # held while the run begins, or is stopped before

    def begin(self) -> None:
        """Starts the thread, unless the run has begun or was stopped."""
        if self._once.acquire(blocking=False):
            self.began = time.monotonic()
            threading.Thread(target=self._context.run, args=(self._act,), name="decoding", daemon=True).start()

    def stop(self) -> None:
        """Asks the work to end, and returns at once."""
        self.watch.stop()
        if self._once.acquire(blocking=False):
            self._finish(None)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end, at most this many seconds."""
        futures.wait([self.end], seconds)

    def batches(self) -> Iterator[list[Event]]:
        """Yields the events since the last batch, without waiting for more, until the end.

        Raises:
            PlaygroundError: the work raised it, after its last events.
        """
        seen, over = 0, False
        while not over:
            over = self.end.done()  # read before the events, so that the last are not missed
            batch = self.events[seen:]
            seen += len(batch)
            yield batch
        if error := self.end.result():
            raise error

    def _act(self) -> None:
        error = None
        try:
            self._work(self.watch)
        except PlaygroundError as problem:
            error = problem
        except BaseException:
            logger.exception("a run failed")
            error = PlaygroundError(INTERNAL)
        self._finish(error)

    def _finish(self, error: PlaygroundError | None) -> None:
        self._ended(self, error)
        self.end.set_result(error)


class Runner:
    """Gives the device to one run at a time, first come, first served. It may be used from several threads."""

    def __init__(self) -> None:
        self._queue: list[Run] = []  # the first has the device
        self._lock = threading.Lock()

    def start(self, run: Run) -> Run:
        """Begins a run once the earlier ones have ended."""
        with self._lock:
            self._queue.append(run)
            first = self._queue[0]
        run.end.add_done_callback(lambda _: self._leave(run))
        first.begin()
        return run

    def ahead(self, run: Run) -> int:
        """Returns how many runs are ahead of this one."""
        with self._lock:
            return self._queue.index(run) if run in self._queue else 0

    def _leave(self, run: Run) -> None:
        with self._lock:
            self._queue.remove(run)
            following = self._queue[:1]
        for each in following:
            each.begin()
