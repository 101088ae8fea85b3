"""A comparison: the same request through several lanes, one after the other.

Page, terminal and endpoint all call `run`; they differ in what they do with its events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from playground.backends.base import Backend
from playground.errors import Stopped
from playground.experiments.events import Event, Finished, LaneFinished, LaneStarted, Progress, RoundDone
from playground.lane import STANDARD, Lane, Request
from playground.trace import Comparison, Round, Trace, check_lanes


def run(
    lanes: Sequence[Lane],
    request: Request,
    backends: Mapping[str, Backend],
    *,
    baseline: str = STANDARD,
    stop: threading.Event,
    emit: Callable[[Event], None],
) -> Comparison | None:
    """Loads what is missing, warms every lane up, and runs the lanes one after the other.

    Once `stop` is set it ends within one round, or at the next progress report while models are fetched. A lane that
    was not reached has no rounds; None is returned if none was reached.

    Args:
        lanes: two or more, each with a name of its own.
        backends: by the name in `Lane.backend`.
        baseline: the name of the lane that the others are compared with.
        emit: is given each event as it happens.

    Raises:
        PlaygroundError: the lanes make no comparison, a model or server cannot be had, the request does not fit, no
            memory is left.
    """

    def tell(step: Progress) -> None:
        if stop.is_set():
            raise Stopped
        emit(step)

    check_lanes(lanes, baseline)
    try:
        for lane in lanes:
            backends[lane.backend].load(lane, tell)
        tell(Progress("Warming up"))
    except Stopped:
        return None
    for lane in lanes:
        backends[lane.backend].warm_up(lane, request, stop)
    traces: list[Trace] = []
    for index, lane in enumerate(lanes):
        if stop.is_set():
            break
        emit(LaneStarted(index, lane))
        done = lambda r, i=index: emit(RoundDone(i, r))  # noqa: E731
        traces.append(decode(backends[lane.backend], lane, request, stop, done))
        emit(LaneFinished(index, traces[-1]))
    if not traces:
        return None
    for lane in lanes[len(traces) :]:
        environment = backends[lane.backend].describe(lane)
        traces.append(Trace(lane, request, environment, traces[0].prompt_ids, (), "stopped"))
    comparison = Comparison(tuple(traces), baseline)
    emit(Finished(comparison))
    return comparison


def repeat(
    comparison: Comparison,
    backends: Mapping[str, Backend],
    times: int,
    *,
    stop: threading.Event,
    emit: Callable[[Event], None],
) -> Comparison:
    """Runs all lanes again, `times` times, interleaved: each pass through the lanes begins with another lane. Once
    `stop` is set, the passes that were finished count.

    Raises:
        PlaygroundError: as `run`.
    """
    lanes, request = [trace.lane for trace in comparison.lanes], comparison.standard.request
    for lane in lanes:
        backends[lane.backend].load(lane, emit)
        backends[lane.backend].warm_up(lane, request, stop)
    repeats = list(comparison.repeats)
    for number in range(times):
        traces: dict[str, Trace] = {}
        for i in range(len(lanes)):
            lane = lanes[(number + 1 + i) % len(lanes)]
            done = (number * len(lanes) + i) / (times * len(lanes))
            emit(Progress(f"Repeat {number + 1} of {times}: {lane.name}", done))
            traces[lane.name] = decode(backends[lane.backend], lane, request, stop, lambda round_: None)
            if stop.is_set():
                return replace(comparison, repeats=tuple(repeats))
        repeats.append(tuple(traces[lane.name] for lane in lanes))
    return replace(comparison, repeats=tuple(repeats))


def decode(
    backend: Backend, lane: Lane, request: Request, stop: threading.Event, tell: Callable[[Round], None]
) -> Trace:
    """One lane on one request, until it ends or `stop` is set. `tell` is given each round."""
    run = backend.run(lane, request)
    rounds: list[Round] = []
    with closing(run.rounds):
        for round_ in run.rounds:
            rounds.append(round_)
            tell(round_)
            if stop.is_set():
                break
    return Trace(lane, request, backend.describe(lane), run.prompt_ids, tuple(rounds), run.finish, run.memory())
