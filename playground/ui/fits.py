"""Which pairs can run here, for the list of models. Found out in a thread, because the hub may take seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from playground.presets import Pair

if TYPE_CHECKING:
    from playground.models.fit import Fit

logger = logging.getLogger(__name__)

WAIT_S = 10


class Fits:
    """Begins at once. `fit_of(pair)` is called for each pair in turn."""

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
        """Finds out again of one pair."""
        try:
            self._found[name] = self._fit_of(self._pairs[name])
        except Exception:
            logger.exception("whether %s fits is unknown", name)

    def wait(self) -> None:
        """Until the first answers are there, some seconds at most."""
        self._thread.join(WAIT_S)

    def of(self, name: str) -> Fit | None:
        """None if it is not known yet, or no preset."""
        return self._found.get(name)

    def choices(self) -> list[tuple[str, str]]:
        """The pairs' titles with whether they can run, and their names."""
        return [
            (f"{pair.title} · {fit.label}" if (fit := self.of(name)) else pair.title, name)
            for name, pair in self._pairs.items()
        ]
