"""The queue for the device: one run at a time, first come first served."""

from __future__ import annotations

import threading


class DeviceQueue:
    """Waiting holds no thread: whoever waits asks now and then how many are ahead. Safe to use from several threads."""

    def __init__(self) -> None:
        self._tickets: list[object] = []
        self._lock = threading.Lock()

    def join(self) -> object:
        """A ticket at the end of the queue, which is to `leave` again."""
        ticket = object()
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    def ahead(self, ticket: object) -> int:
        """The number of tickets ahead of this one; at 0 it holds the device."""
        with self._lock:
            return self._tickets.index(ticket)

    def leave(self, ticket: object) -> None:
        """May be called again."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
