"""One pass of a request through several lanes: those of this process by turns, those of servers alone.

The next turn is always that of the lane whose own clock is behind. Each clock stands still while the others decode, so
all lanes advance together at their true relative speed, and whatever else the machine does meets them alike. The first
round of a turn finds the processor's caches as another lane left them, and can take longer for it: so a turn has
several rounds, unless they are slow (`python -m benchmarks turns`). A server's clock cannot be stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from playground.backends.base import Backend, LaneRun
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.lane import Lane, Request
from playground.trace import Round, Schedule, Trace

SECONDS = 0.4  # a turn ends with the round that reaches so much time, if not with the most rounds of its lane


def _nothing(*_: object) -> None:
    pass


def _fail(lane: Lane, error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class Race:
    """Runs a request through lanes, and tells what happens.

    Attributes:
        backends: by the name in `Lane.backend`.
        started: called with a lane before its first round.
        took: called with a lane and its round.
        ended: called with each trace.
        failed: called with a lane and the error that ended it; the other lanes go on.
    """

    backends: Mapping[str, Backend]
    request: Request
    watch: Watch
    started: Callable[[Lane], object] = _nothing
    took: Callable[[Lane, Round], object] = _nothing
    ended: Callable[[Trace], object] = _nothing
    failed: Callable[[Lane, Exception], object] = _fail

    def run(self, lanes: Sequence[Lane]) -> list[Trace | None]:
        """Runs the lanes. Of two whose clocks are equal the earlier one goes first.

        Returns:
            The trace of each; None for lanes that failed, or were not reached before a stop.
        """
        together = [i for i, lane in enumerate(lanes) if self.backends[lane.backend].by_turns]
        traces: list[Trace | None] = [None] * len(lanes)
        for i in range(len(lanes)):
            group = [i] if i not in together else together if i == together[0] else []
            if group and not self.watch.stopped():
                for at, trace in self.by_turns([lanes[at] for at in group]).items():
                    traces[group[at]] = trace
        return traces

    def by_turns(self, lanes: Sequence[Lane]) -> dict[int, Trace]:
        """Runs lanes together. Returns the traces by the index of their lane, without lanes that failed."""
        running: list[_Turn] = []
        traces: dict[int, Trace] = {}
        with ExitStack() as closing:

            def end(turn: _Turn) -> None:
                running.remove(turn)
                trace = traces[turn.index] = self._trace(turn, "by turns" if len(lanes) > 1 else "alone")
                self.ended(trace)

            for index, lane in enumerate(lanes):
                try:
                    running.append(_Turn(index, lane, self.backends[lane.backend].run(lane, self.request)))
                except (PlaygroundError, RuntimeError) as error:
                    self.failed(lane, error)
                    continue
                closing.callback(running[-1].run.rounds.close)
                self.started(lane)
            while running and not self.watch.stopped():
                turn = min(running, key=lambda turn: turn.clock_s)
                ends_s = turn.clock_s + SECONDS
                for _ in range(turn.run.turn):
                    if turn.clock_s >= ends_s or self.watch.stopped():
                        break
                    try:
                        round_ = next(turn.run.rounds, None)
                    except (PlaygroundError, RuntimeError) as error:  # torch raises RuntimeError
                        running.remove(turn)
                        self.failed(turn.lane, error)
                        break
                    if round_ is None:
                        end(turn)
                        break
                    turn.rounds.append(round_)
                    turn.clock_s = round_.end_s + (round_.commit_s or 0.0)
                    self.took(turn.lane, round_)
            for turn in [*running]:
                end(turn)
        return traces

    def _trace(self, turn: _Turn, schedule: Schedule) -> Trace:
        """Returns the trace of a run that has ended or was stopped."""
        run = turn.run
        run.rounds.close()
        return Trace(
            lane=turn.lane,
            request=self.request,
            environment=self.backends[turn.lane.backend].describe(turn.lane),
            prompt_ids=run.prompt_ids,
            rounds=run.amended or tuple(turn.rounds),
            finish=run.finish,
            memory=run.memory(),
            markers=run.markers,
            reused=run.reused,
            totals=run.totals,
            schedule=schedule,
        )


@dataclass(eq=False)
class _Turn:
    """A lane that runs, its rounds so far, and its own clock."""

    index: int
    lane: Lane
    run: LaneRun
    rounds: list[Round] = field(default_factory=list)
    clock_s: float = 0.0


def decode(
    backend: Backend, lane: Lane, request: Request, watch: Watch, took: Callable[[Round], object] = _nothing
) -> Trace:
    """Runs one lane on a request until it ends or is stopped. `took` is called with each round.

    Raises:
        PlaygroundError: the request does not fit, memory ran out, or a server broke off.
    """
    race = Race({lane.backend: backend}, request, watch, took=lambda lane, round_: took(round_))
    return race.by_turns([lane])[0]
