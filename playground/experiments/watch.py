"""What work is given by whoever waits for it: where its events go, and whether it is to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from playground.errors import Stopped
from playground.experiments.events import Event
from playground.progress import Progress


@dataclass(frozen=True)
class Watch:
    """`emit` is given each event as it happens. One that `replace` makes with another `emit` stops with this one."""

    emit: Callable[[Event], object] = lambda event: None
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Asks the work to end; returns at once."""
        self._stop.set()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Until it is stopped, this long at most; whether it is."""
        return self._stop.wait(seconds)

    def check(self) -> None:
        """Raises:
        Stopped: it is.
        """
        if self.stopped():
            raise Stopped

    def progress(self, step: Progress) -> None:
        """Emits it.

        Raises:
            Stopped: instead, if it is.
        """
        self.check()
        self.emit(step)
