"""Loads the default pair in the background while the page already answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from playground.errors import PlaygroundError
from playground.progress import Progress

log = logging.getLogger(__name__)


class Preload:
    """`load(progress)` in a thread of its own. Every open page may read how far it is.

    Attributes:
        latest: the last progress reported.
        error: a sentence for people where loading failed.
    """

    def __init__(self, load: Callable[[Callable[[Progress], None]], object]) -> None:
        self.latest = Progress("Loading the model")
        self.error = ""
        self._thread = threading.Thread(target=self._run, args=(load,), name="preload", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, load: Callable[[Callable[[Progress], None]], object]) -> None:
        try:
            load(self._tell)
        except PlaygroundError as error:
            self.error = str(error)
        except Exception:
            log.exception("loading the default pair failed")
            self.error = "The default model could not be loaded; the server's log says why. Other pairs may still run."

    def _tell(self, progress: Progress) -> None:
        self.latest = progress
