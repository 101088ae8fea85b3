"""Background work while the page already answers: loading the default pair, and finding the pairs that can run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from playground.errors import PlaygroundError
from playground.presets import Pair
from playground.progress import Progress

if TYPE_CHECKING:
    from playground.models.fit import Fit

log = logging.getLogger(__name__)


class Preload:
    """Calls `load(progress)` in a thread of its own. Every open page may read the progress.

    Attributes:
        latest: the last progress reported.
        error: a sentence for the user if loading failed.
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
            load(partial(setattr, self, "latest"))
        except PlaygroundError as error:
            self.error = str(error)
        except Exception:
            log.exception("loading the default pair failed")
            self.error = "The default model could not be loaded; the server's log says why. Other pairs may still run."


WAIT_S = 10


class Fits:
    """Finds out which pairs can run here, in a thread because the hub may take seconds. It starts at once and calls
    `fit_of(pair)` for each pair in turn."""

    def __init__(self, pairs: Mapping[str, Pair], fit_of: Callable[[Pair], Fit]) -> None:
        self._pairs, self._fit_of = pairs, fit_of
        self._found: dict[str, Fit] = {}
        self._thread = threading.Thread(target=self.refresh, name="fits", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Finds out again, for instance after a download."""
        for name in self._pairs:
            self.find(name)

    def find(self, name: str) -> None:
        """Finds out again for one pair."""
        try:
            self._found[name] = self._fit_of(self._pairs[name])
        except Exception:
            log.exception("whether %s fits is unknown", name)

    def wait(self) -> None:
        """Waits until the first answers are known, some seconds at most."""
        self._thread.join(WAIT_S)

    def of(self, name: str) -> Fit | None:
        """Returns a pair's fit; None if it is not known yet, or if there is no such preset."""
        return self._found.get(name)

    def choices(self) -> list[tuple[str, str]]:
        """Returns the pairs' titles, which say whether they can run, and their names."""
        return [
            (f"{pair.title} · {fit.label}" if (fit := self.of(name)) else pair.title, name)
            for name, pair in self._pairs.items()
        ]
