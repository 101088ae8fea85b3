"""What is to be run, as data: it can be estimated before it runs, and pickled into another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from playground.backends.base import Backend
from playground.experiments import compare
from playground.experiments.events import Event, Finished
from playground.lane import Lane, Request
from playground.trace import Comparison


class Work(Protocol):
    """Runs lanes when it is called, and emits events, of which `Finished` holds the result."""

    @property
    def lanes(self) -> Sequence[Lane]: ...

    @property
    def tokens(self) -> int:
        """The most new tokens that all lanes together decode."""

    def __call__(
        self, backends: Mapping[str, Backend], *, stop: threading.Event, emit: Callable[[Event], None]
    ) -> None: ...


@dataclass(frozen=True)
class Compare:
    """As `compare.run`."""

    lanes: Sequence[Lane]
    request: Request
    skip: bool = False

    @property
    def tokens(self) -> int:
        return len(self.lanes) * self.request.max_new_tokens

    def __call__(
        self, backends: Mapping[str, Backend], *, stop: threading.Event, emit: Callable[[Event], None]
    ) -> None:
        compare.run(self.lanes, self.request, backends, skip=self.skip, stop=stop, emit=emit)


@dataclass(frozen=True)
class Repeat:
    """As `compare.repeat`."""

    comparison: Comparison
    times: int

    @property
    def lanes(self) -> Sequence[Lane]:
        return [trace.lane for trace in self.comparison.lanes]

    @property
    def tokens(self) -> int:
        return self.times * len(self.lanes) * self.comparison.standard.request.max_new_tokens

    def __call__(
        self, backends: Mapping[str, Backend], *, stop: threading.Event, emit: Callable[[Event], None]
    ) -> None:
        emit(Finished(compare.repeat(self.comparison, backends, self.times, stop=stop, emit=emit)))
