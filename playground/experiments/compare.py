"""A comparison: the same request through several lanes, one after the other.

Page, terminal, endpoint and Python API all call `run`; they differ in what they do with its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from playground import metrics
from playground.backends.base import Backend
from playground.backends.restarted import Restarted
from playground.errors import PlaygroundError, Stopped
from playground.experiments.events import Finished, LaneFinished, LaneSkipped, LaneStarted, Progress, RoundDone, Watch
from playground.lane import STANDARD, Lane, Request
from playground.trace import Comparison, Round, Trace, check_lanes

SHORT_S = 10.0  # lanes that take less run again by themselves
FINALISTS = 3  # how many drafters run again where several compete


def run(
    lanes: Sequence[Lane],
    request: Request,
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    baseline: str = STANDARD,
    skip: bool = False,
    repeats: int = 0,
) -> Comparison | None:
    """Loads missing models, warms every lane up, and runs the lanes one after the other. Short lanes run again in the
    passes that `again` returns, which shows the noise.

    Once it is stopped it ends within one round, or at the next progress report while models are downloaded. A lane that
    was not reached has no rounds; None is returned if none was reached.

    Args:
        lanes: two or more, with distinct names.
        backends: by the name in `Lane.backend`.
        baseline: the name of the lane that the others are compared with.
        skip: leave out a lane that cannot run, with a LaneSkipped, as long as the baseline and one other lane remain.
        repeats: how many times more all lanes run; see `repeat`.

    Raises:
        PlaygroundError: the lanes make no comparison, a model or server is not available, the request does not fit,
            memory ran out, or a server broke off. If another lane had finished by then, Finished is emitted first, with
            the results so far.
    """
    check_lanes(lanes, baseline)
    running = _Running([*lanes], request, backends, watch, baseline, skip)
    try:
        running.prepare()
    except Stopped:
        return None
    try:
        running.each(running.decode_next)
    except PlaygroundError:
        if running.traces:
            running.finish()
        raise
    if not running.traces:
        return None
    comparison = running.finish(running.show_noise() if running.short else ())
    return repeat(comparison, backends, repeats, watch) if repeats and not watch.stopped() else comparison


@dataclass
class _Running:
    """A comparison that runs: the lanes that can, and what they have given so far."""

    lanes: list[Lane]
    request: Request
    backends: Mapping[str, Backend]
    watch: Watch
    baseline: str
    skip: bool
    traces: list[Trace] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)  # of the running lane

    def each(self, act: Callable[[Lane], None]) -> None:
        """Calls `act` for each lane and leaves out the lanes for which it fails."""
        for lane in tuple(self.lanes):
            try:
                act(lane)
            except PlaygroundError as error:
                if not self.skip or lane.name == self.baseline or len(self.lanes) == 2:
                    raise
                self.lanes.remove(lane)
                self.watch.emit(LaneSkipped(lane, str(error)))

    def prepare(self) -> None:
        """Loads the models of all lanes, and warms the lanes up.

        Raises:
            Stopped: it was stopped meanwhile.
        """
        self.each(lambda lane: self.backends[lane.backend].load(lane, self.watch.progress))
        cold = tuple(self.lanes)

        def warm(lane: Lane) -> None:
            self.watch.progress(_warming(lane, cold))
            self.backends[lane.backend].warm_up(lane, self.request, self.watch.stopped)

        self.each(warm)

    def decode_next(self, lane: Lane) -> None:
        """Decodes the lane after the earlier ones, unless it is stopped."""
        if self.watch.stopped():
            return
        index = len(self.traces)
        self.watch.emit(LaneStarted(index, lane))
        self.rounds.clear()

        def take(round_: Round) -> None:
            self.rounds.append(round_)
            self.watch.emit(RoundDone(index, round_))

        self.traces.append(decode(self.backends[lane.backend], lane, self.request, self.watch, take))
        self.rounds.clear()
        self.watch.emit(LaneFinished(index, self.traces[-1]))

    @property
    def short(self) -> bool:
        """True where all lanes have ended, and can run again by themselves: none takes long, or needs a start of its
        server for each turn."""
        restarts = any(isinstance(self.backends[lane.backend], Restarted) for lane in self.lanes)
        return not restarts and len(self.traces) == len(self.lanes) and all(map(_short, self.traces))

    def show_noise(self) -> tuple[tuple[Trace, ...], ...]:
        """Runs the lanes in the passes that `again` returns. Returns the passes that were not stopped."""
        comparison, passes = Comparison(tuple(self.traces), self.baseline), list[tuple[Trace, ...]]()
        ranking = [comparison.standard.lane, *(it.ours.lane for it in metrics.ranked(comparison))]
        for number, ranks in enumerate(again(len(comparison.others))):
            lanes, what = [ranking[rank] for rank in ranks], f"Again, to see the noise ({number + 1})"
            passed = _pass(lanes, self.lanes, self.request, self.backends, self.watch, what)
            if passed is None:
                break
            passes.append(passed)
        return tuple(passes)

    def finish(self, repeats: tuple[tuple[Trace, ...], ...] = ()) -> Comparison:
        """Emits the comparison, in which the lanes that were not decoded to their end are stopped ones."""
        for lane in self.lanes[len(self.traces) :]:
            environment = self.backends[lane.backend].describe(lane)
            ids = self.traces[0].prompt_ids
            self.traces.append(Trace(lane, self.request, environment, ids, tuple(self.rounds), "stopped"))
            self.rounds.clear()
        comparison = Comparison(tuple(self.traces), self.baseline, repeats)
        self.watch.emit(Finished(comparison))
        return comparison


def again(others: int) -> list[list[int]]:
    """Returns the lanes of each further pass, by rank: 0 is the baseline, 1 the fastest of the `others`. The baseline
    runs, and the fastest drafters where several compete."""
    if others == 1:
        return [[0]]
    ranks = [*range(min(others, FINALISTS), -1, -1)]
    return [ranks] if others >= FINALISTS else [ranks, ranks[::-1]]


def _short(trace: Trace) -> bool:
    return trace.finish != "stopped" and metrics.measure(trace).total_s < SHORT_S


def _pass(
    lanes: Sequence[Lane], order: Sequence[Lane], request: Request, backends: Mapping[str, Backend], watch: Watch,
    what: str, done: float = 0.0, share: float = 1.0,
) -> tuple[Trace, ...] | None:  # fmt: skip
    """Runs the lanes, which are warm, once in the order `order`. Returns their traces in that order; None if it was
    stopped.

    Args:
        what: the name of the pass in progress reports.
        done: the share of all work that was done before this pass.
        share: the share of all work that this pass does.
    """
    traces: dict[str, Trace] = {}
    for i, lane in enumerate(lanes):
        watch.emit(Progress(f"{what}: {lane.name}", done + share * i / len(lanes)))
        traces[lane.name] = decode(backends[lane.backend], lane, request, watch)
        if watch.stopped():
            return None
    return tuple(traces[lane.name] for lane in order if lane.name in traces)


def repeat(
    comparison: Comparison,
    backends: Mapping[str, Backend],
    times: int,
    watch: Watch,
) -> Comparison:
    """Runs all lanes again, `times` times, interleaved: each pass begins with another lane. Once it is stopped, the
    passes that were finished count.

    Raises:
        PlaygroundError: see `run`.
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
        if number and metrics.unsteady(repeats[-1]):
            for lane in lanes:  # this chooses the number of threads again
                backends[lane.backend].warm_up(lane, request, watch.stopped)
        turned = [lanes[(number + 1 + i) % len(lanes)] for i in range(len(lanes))]
        what = f"Repeat {number + 1} of {times}"
        passed = _pass(turned, lanes, request, backends, watch, what, number / times, 1 / times)
        if passed is None:
            break
        repeats.append(passed)
        watch.emit(Finished(replace(comparison, repeats=tuple(repeats))))
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
    """Runs a lane on a request until it ends or is stopped. `take` is called with each round.

    Raises:
        PlaygroundError: see `run`.
    """
    run = backend.run(lane, request)
    rounds: list[Round] = []
    with closing(run.rounds):
        for round_ in run.rounds:
            rounds.append(round_)
            take(round_)
            if watch.stopped():
                break
    joules = run.joules()  # read before anything else is computed
    environment, all_rounds = backend.describe(lane), run.amended or tuple(rounds)
    return Trace(
        lane,
        request,
        environment,
        run.prompt_ids,
        all_rounds,
        run.finish,
        run.memory(),
        joules,
        run.markers,
        run.reused,
        run.totals,
    )
