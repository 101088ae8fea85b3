"""The queue for the device: one run at a time, first come first served, and everyone knows their position."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DeviceQueue:
    """Runs wait here, in their worker threads, until the device is theirs."""

    def __init__(self) -> None:
        self._tickets: list[object] = []
        self._moved = threading.Condition()

    @contextmanager
    def turn(self, stop: threading.Event, tell: Callable[[int], None]) -> Iterator[bool]:
        """Waits for its turn and holds the device until the block ends. `tell` is given the number of runs ahead
        whenever it changes. Yields False if `stop` was set first; the device is not held then."""
        ticket = object()
        with self._moved:
            self._tickets.append(ticket)
        try:
            yield self._wait(ticket, stop, tell)
        finally:
            with self._moved:
                self._tickets.remove(ticket)
                self._moved.notify_all()

    def _wait(self, ticket: object, stop: threading.Event, tell: Callable[[int], None]) -> bool:
        last = 0
        with self._moved:
            while ahead := self._tickets.index(ticket):
                if stop.is_set():
                    return False
                if ahead != last:
                    tell(ahead)
                    last = ahead
                self._moved.wait(timeout=0.1)
        return True
