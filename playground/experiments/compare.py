"""A comparison: the same request through several lanes, one after the other.

Page, terminal and endpoint all call `run`; they differ in what they do with its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from playground import metrics
from playground.backends.base import Backend
from playground.errors import PlaygroundError, Stopped
from playground.experiments.events import Finished, LaneFinished, LaneSkipped, LaneStarted, Progress, RoundDone
from playground.experiments.watch import Watch
from playground.lane import STANDARD, Lane, Request
from playground.trace import Comparison, Round, Trace, check_lanes


def run(
    lanes: Sequence[Lane],
    request: Request,
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    baseline: str = STANDARD,
    skip: bool = False,
) -> Comparison | None:
    """Loads what is missing, warms every lane up, and runs the lanes one after the other.

    Once it is stopped it ends within one round, or at the next progress report while models are fetched. A lane that
    was not reached has no rounds; None is returned if none was reached.

    Args:
        lanes: two or more, each with a name of its own.
        backends: by the name in `Lane.backend`.
        baseline: the name of the lane that the others are compared with.
        skip: leave out a lane that cannot run, with a LaneSkipped, as long as the baseline and one other lane remain.

    Raises:
        PlaygroundError: the lanes make no comparison, a model or server cannot be had, the request does not fit, no
            memory is left, a server broke off. If another lane had finished by then, Finished is emitted first, with
            what there is.
    """

    def each(act: Callable[[Lane], None]) -> None:
        """Leaves out the lanes for which it fails."""
        for lane in tuple(able):
            try:
                act(lane)
            except PlaygroundError as error:
                if not skip or lane.name == baseline or len(able) == 2:
                    raise
                able.remove(lane)
                watch.emit(LaneSkipped(lane, str(error)))

    def decode_next(lane: Lane) -> None:
        if watch.stopped():
            return
        index = len(traces)
        watch.emit(LaneStarted(index, lane))
        rounds.clear()

        def take(round_: Round) -> None:
            rounds.append(round_)
            watch.emit(RoundDone(index, round_))

        traces.append(decode(backends[lane.backend], lane, request, watch, take))
        rounds.clear()
        watch.emit(LaneFinished(index, traces[-1]))

    def finish() -> Comparison:
        for lane in able[len(traces) :]:
            environment = backends[lane.backend].describe(lane)
            traces.append(Trace(lane, request, environment, traces[0].prompt_ids, tuple(rounds), "stopped"))
            rounds.clear()
        comparison = Comparison(tuple(traces), baseline)
        watch.emit(Finished(comparison))
        return comparison

    check_lanes(lanes, baseline)
    able = list(lanes)
    traces: list[Trace] = []
    rounds: list[Round] = []  # of the lane that runs
    try:
        each(lambda lane: backends[lane.backend].load(lane, watch.progress))
        cold = tuple(able)

        def warm(lane: Lane) -> None:
            watch.progress(_warming(lane, cold))
            backends[lane.backend].warm_up(lane, request, watch.stopped)

        each(warm)
    except Stopped:
        return None
    try:
        each(decode_next)
    except PlaygroundError:
        if traces:
            finish()
        raise
    return finish() if traces else None


def repeat(
    comparison: Comparison,
    backends: Mapping[str, Backend],
    times: int,
    watch: Watch,
) -> Comparison:
    """Runs all lanes again, `times` times, interleaved: each pass through the lanes begins with another lane. Once it
    is stopped, the passes that were finished count.

    Raises:
        PlaygroundError: as `run`.
    """
    lanes, request = [trace.lane for trace in comparison.lanes], comparison.standard.request
    try:
        for lane in lanes:
            backends[lane.backend].load(lane, watch.progress)
        for lane in lanes:
            watch.progress(_warming(lane, lanes))
            backends[lane.backend].warm_up(lane, request, watch.stopped)
    except Stopped:
        return comparison
    repeats = list(comparison.repeats)
    for number in range(times):
        if number and metrics.unsteady(trace.rounds for trace in repeats[-1]):
            for lane in lanes:  # which chooses the number of threads anew
                backends[lane.backend].warm_up(lane, request, watch.stopped)
        traces: dict[str, Trace] = {}
        for i in range(len(lanes)):
            lane = lanes[(number + 1 + i) % len(lanes)]
            done = (number * len(lanes) + i) / (times * len(lanes))
            watch.emit(Progress(f"Repeat {number + 1} of {times}: {lane.name}", done))
            traces[lane.name] = decode(backends[lane.backend], lane, request, watch)
            if watch.stopped():
                return replace(comparison, repeats=tuple(repeats))
        repeats.append(tuple(traces[lane.name] for lane in lanes))
    return replace(comparison, repeats=tuple(repeats))


def _warming(lane: Lane, lanes: Sequence[Lane]) -> Progress:
    at = lanes.index(lane)
    return Progress(f"Warming up lane {at + 1} of {len(lanes)}: {lane.name}", at / len(lanes))


def decode(
    backend: Backend,
    lane: Lane,
    request: Request,
    watch: Watch,
    take: Callable[[Round], None] = lambda round_: None,
) -> Trace:
    """One lane on one request, until it ends or is stopped. `take` is given each round.

    Raises:
        PlaygroundError: as `run`.
    """
    run = backend.run(lane, request)
    rounds: list[Round] = []
    with closing(run.rounds):
        for round_ in run.rounds:
            rounds.append(round_)
            take(round_)
            if watch.stopped():
                break
    joules = run.joules()  # before anything else is computed
    environment, all_rounds = backend.describe(lane), run.amended or tuple(rounds)
    return Trace(lane, request, environment, run.prompt_ids, all_rounds, run.finish, run.memory(), joules)
