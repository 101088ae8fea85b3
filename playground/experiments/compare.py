"""A comparison: the same request through several lanes.

Page, terminal, endpoint and Python API all call `run`; they differ in what they do with its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from playground import metrics
from playground.backends.base import Backend
from playground.backends.connect import Restarted
from playground.errors import PlaygroundError, Stopped
from playground.experiments.events import Finished, LaneFinished, LaneSkipped, LaneStarted, Progress, RoundDone, Watch
from playground.experiments.race import Race
from playground.lane import STANDARD, Lane, Request
from playground.trace import Comparison, Round, Trace, check_lanes

SHORT_S = 10.0  # lanes that take less run again by themselves
FINALISTS = 3  # how many drafters run again where several compete
REPORTS = 50  # of the progress of a pass
AGAIN = 1  # the most passes that lanes which take turns run again by themselves


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
    """Loads missing models, warms every lane up, and runs the lanes, those of this process by turns. Short lanes run
    again where their figures are not sure enough; see `again`.

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
        running.decode()
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
    traces: dict[str, Trace] = field(default_factory=dict)  # of the lanes that have ended, by name
    rounds: dict[str, list[Round]] = field(default_factory=dict)  # of all lanes that have begun

    def left_out(self, lane: Lane, error: Exception) -> bool:
        """Leaves out a lane that has failed, if the comparison can do without it."""
        if not self.skip or lane.name == self.baseline or len(self.lanes) == 2:
            return False
        self.watch.emit(LaneSkipped(lane, str(error), self.lanes.index(lane)))
        self.lanes.remove(lane)
        return True

    def prepare(self) -> None:
        """Loads the models of all lanes, and warms the lanes up.

        Raises:
            Stopped: it was stopped meanwhile.
        """
        self._each(lambda lane: self.backends[lane.backend].load(lane, self.watch.progress))
        cold = tuple(self.lanes)

        def warm(lane: Lane) -> None:
            at = cold.index(lane)
            self.watch.progress(Progress(f"Warming up lane {at + 1} of {len(cold)}: {lane.name}", at / len(cold)))
            self.backends[lane.backend].warm_up(lane, self.request, self.watch.stopped)

        self._each(warm)

    def _each(self, act: Callable[[Lane], None]) -> None:
        for lane in tuple(self.lanes):
            try:
                act(lane)
            except PlaygroundError as error:
                if not self.left_out(lane, error):
                    raise

    def decode(self) -> None:
        """Decodes the lanes, unless it is stopped.

        Raises:
            PlaygroundError: a lane failed and cannot be left out. The others have ended by then.
        """
        errors: list[Exception] = []

        def started(lane: Lane) -> None:
            self.rounds[lane.name] = []
            self.watch.emit(LaneStarted(self.lanes.index(lane), lane))

        def took(lane: Lane, round_: Round) -> None:
            self.rounds[lane.name].append(round_)
            self.watch.emit(RoundDone(self.lanes.index(lane), round_))

        def ended(trace: Trace) -> None:
            self.traces[trace.lane.name] = trace
            self.watch.emit(LaneFinished(self.lanes.index(trace.lane), trace))

        def failed(lane: Lane, error: Exception) -> None:
            if not isinstance(error, PlaygroundError) or not self.left_out(lane, error):
                errors.append(error)

        Race(self.backends, self.request, self.watch, started, took, ended, failed).run(tuple(self.lanes))
        if errors:
            raise errors[0]

    @property
    def short(self) -> bool:
        """True where all lanes have ended, and can run again by themselves: none takes long, or needs a start of its
        server for each turn."""
        restarts = any(isinstance(self.backends[lane.backend], Restarted) for lane in self.lanes)
        return not restarts and len(self.traces) == len(self.lanes) and all(map(_short, self.traces.values()))

    def show_noise(self) -> tuple[tuple[Trace, ...], ...]:
        """Runs lanes again as long as `again` returns some. Returns the passes that were not stopped."""
        comparison = Comparison(tuple(self.traces[lane.name] for lane in self.lanes), self.baseline)
        race = Race(self.backends, self.request, self.watch)
        while lanes := again(comparison):
            what = f"Measuring once more ({len(comparison.repeats) + 1})"
            passed = _pass(race, lanes, self.lanes, what)
            if passed is None:
                break
            comparison = replace(comparison, repeats=(*comparison.repeats, passed))
        return comparison.repeats

    def finish(self, repeats: tuple[tuple[Trace, ...], ...] = ()) -> Comparison:
        """Emits the comparison, in which the lanes that were not decoded to their end are stopped ones."""
        for lane in self.lanes:
            if lane.name not in self.traces:
                environment = self.backends[lane.backend].describe(lane)
                ids, rounds = next(iter(self.traces.values())).prompt_ids, tuple(self.rounds.get(lane.name, ()))
                self.traces[lane.name] = Trace(lane, self.request, environment, ids, rounds, "stopped")
        comparison = Comparison(tuple(self.traces[lane.name] for lane in self.lanes), self.baseline, repeats)
        self.watch.emit(Finished(comparison))
        return comparison


def again(comparison: Comparison) -> list[Lane]:
    """Returns the lanes that should run once more, to show the noise: the baseline, and the fastest drafters where
    several compete; none once the figures are sure enough.

    Lanes that took turns show the noise in a single pass, and run again where it was large. Others run again in the
    passes of `passes_alone`.
    """
    ranking = [comparison.standard.lane, *(it.ours.lane for it in metrics.ranked(comparison))]
    done = len(comparison.repeats)
    if all(trace.schedule == "by turns" for trace in comparison.lanes):
        return [] if done == AGAIN or metrics.sure(comparison) else ranking[: FINALISTS + 1]
    passes = passes_alone(len(comparison.others))
    return [ranking[rank] for rank in passes[done]] if done < len(passes) else []


def passes_alone(others: int) -> list[list[int]]:
    """Returns the lanes of each further pass of lanes that run one after the other, by rank: 0 is the baseline, 1 the
    fastest of the `others`. The first pass runs the lanes in the other order, so that a drift of the machine cancels
    out."""
    if others == 1:
        return [[1, 0]]
    ranks = [*range(min(others, FINALISTS), -1, -1)]
    return [ranks] if others >= FINALISTS else [ranks, ranks[::-1]]


def most_runs(lanes: int) -> int:
    """Returns how many runs of a lane a comparison of so many lanes can take, those that it adds by itself included."""
    return lanes + max(AGAIN * min(lanes, FINALISTS + 1), sum(map(len, passes_alone(lanes - 1))))


def _short(trace: Trace) -> bool:
    return trace.finish != "stopped" and metrics.measure(trace).total_s < SHORT_S


def _pass(
    race: Race, lanes: Sequence[Lane], order: Sequence[Lane], what: str, done: float = 0.0, share: float = 1.0
) -> tuple[Trace, ...] | None:
    """Runs the lanes, which are warm, once. Returns their traces in the order `order`; None if it was stopped.

    Args:
        what: the name of the pass in progress reports.
        done: the share of all work that was done before this pass.
        share: the share of all work that this pass does.
    """
    watch, tokens, most = race.watch, 0, len(lanes) * race.request.max_new_tokens

    def started(lane: Lane) -> None:
        watch.emit(Progress(f"{what}: {lane.name}", done + share * tokens / most))

    def took(lane: Lane, round_: Round) -> None:
        nonlocal tokens
        before, tokens = tokens, tokens + len(round_.tokens)
        if tokens * REPORTS // most > before * REPORTS // most:
            started(lane)

    traces = dict(zip(lanes, replace(race, started=started, took=took).run(lanes), strict=True))
    found = [traces.get(lane) for lane in order]
    return None if watch.stopped() else tuple(filter(None, found))


def repeat(comparison: Comparison, backends: Mapping[str, Backend], times: int, watch: Watch) -> Comparison:
    """Runs all lanes again, `times` times, interleaved: each pass begins with another lane. Once it is
    stopped, the passes that were finished count.

    Raises:
        PlaygroundError: see `run`.
    """
    lanes, request = [trace.lane for trace in comparison.lanes], comparison.standard.request
    try:
        _Running(lanes, request, backends, watch, comparison.baseline, skip=False).prepare()
    except Stopped:
        return comparison
    repeats = list(comparison.repeats)
    race = Race(backends, request, watch)
    for number in range(times):
        if number and metrics.unsteady(repeats[-1]):
            for lane in lanes:  # this chooses the number of threads again
                backends[lane.backend].warm_up(lane, request, watch.stopped)
        turned = [lanes[(number + 1 + i) % len(lanes)] for i in range(len(lanes))]
        what = f"Repeat {number + 1} of {times}"
        passed = _pass(race, turned, lanes, what, number / times, 1 / times)
        if passed is None:
            break
        repeats.append(passed)
        watch.emit(Finished(replace(comparison, repeats=tuple(repeats))))
    return replace(comparison, repeats=tuple(repeats))
