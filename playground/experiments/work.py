"""Work to run, as data: it can be estimated before it runs, and pickled for another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from playground.backends.base import Backend
from playground.backends.connect import NONE, Servers, connected
from playground.experiments import compare
from playground.experiments.events import Finished, Progress, Watch
from playground.lane import Lane, Request
from playground.presets import Pair
from playground.results import Result
from playground.trace import Comparison


class Work(Protocol):
    """Runs lanes when it is called, and emits events; `Finished` holds the result."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes that are known before it runs. A server's lane is only known once the server was asked."""

    @property
    def tokens(self) -> int:
        """The most new tokens that all lanes together decode."""

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None: ...


class Experiment(Work, Protocol):
    """Long work: a dataclass that can be stored as JSON, whose rows are recorded as they come. It emits `ResultReady`
    at the end, also with what was finished when it was stopped. `record`: the path of its record; "" for none."""

    @property
    def pair(self) -> Pair | None:
        """The pair that decodes; None where servers alone decode, and it is called without backends."""

    @property
    def record(self) -> str: ...

    def so_far(self) -> Result | None:
        """Returns the result of what its record holds; None without a finished question."""


@dataclass(frozen=True)
class Compare:
    """A comparison of `lanes` and the lanes of `servers`; see `compare.run`. `baseline`: the name of one of `lanes`; ""
    for that of `servers`. Servers among the lanes that have no backend are those of an earlier turn, and are asked
    again."""

    lanes: Sequence[Lane]
    request: Request
    skip: bool = False
    servers: Servers = NONE
    baseline: str = ""
    repeats: int = 0

    @property
    def count(self) -> int:
        """The number of lanes that will run."""
        return len(self.lanes) + len(self.servers.urls)

    @property
    def tokens(self) -> int:
        return (self.repeats * self.count + compare.most_runs(self.count)) * self.request.max_new_tokens

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        for url in self.servers.urls:
            watch.emit(Progress(f"Asking the server at {url}"))
        lanes, servers, baseline = self.servers.with_local(self.lanes)
        earlier = connected([lane for lane in self.lanes if lane.backend not in backends])
        every, baseline = {**backends, **earlier, **servers}, self.baseline or baseline
        compare.run(lanes, self.request, every, watch, baseline=baseline, skip=self.skip, repeats=self.repeats)


@dataclass(frozen=True)
class Repeat:
    """A repeat of a comparison that was run here; see `compare.repeat`. Its servers are asked again."""

    comparison: Comparison
    times: int

    @property
    def lanes(self) -> Sequence[Lane]:
        return [trace.lane for trace in self.comparison.lanes]

    @property
    def tokens(self) -> int:
        return self.times * len(self.lanes) * self.comparison.standard.request.max_new_tokens

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        every = {**backends, **connected(self.lanes)}
        watch.emit(Finished(compare.repeat(self.comparison, every, self.times, watch)))
