"""Runs work in a thread and hands its events over in batches, so that whoever watches never slows the decoding.

Gradio resumes a generator only after it has sent the last yield; a decode loop that yields to the page would measure
the page. Here the worker only appends to a queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Protocol

from playground.experiments.events import Event
from playground.experiments.watch import Watch

Work = Callable[[Watch], object]


class Run(Protocol):
    """Work under way: a `BackgroundRun`, or one in another process."""

    def stop(self) -> None: ...

    def drain(self, hz: float) -> Generator[list[Event], None, None]: ...


class BackgroundRun:
    """`work(watch)` in a daemon thread of its own. It is expected to return soon after it is stopped."""

    def __init__(self, work: Work) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._watch = Watch(self._events.put)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="decoding", daemon=True)
        self._thread.start()

    def _run(self, work: Work) -> None:
        try:
            work(self._watch)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """Asks the work to end; returns at once."""
        self._watch.stop()

    def wait(self) -> None:
        """Until the work has ended."""
        self._thread.join()

    def drain(self, hz: float = 20) -> Generator[list[Event], None, None]:
        """Yields what has arrived, `hz` times a second (an empty list where nothing has), until the work has ended.

        Raises:
            whatever the work raised, after its last events.
        """
        period = 1 / hz
        while True:
            due = time.monotonic() + period
            ended = not self._thread.is_alive()  # read before the queue, so that the last events are not missed
            batch = []
            while not self._events.empty():
                batch.append(self._events.get())
            yield batch
            if ended:
                break
            self._thread.join(timeout=max(0.0, due - time.monotonic()))
        if self._error is not None:
            raise self._error
