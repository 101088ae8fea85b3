"""A run's events as progress bars in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from playground.errors import PlaygroundError
from playground.experiments import events
from playground.experiments.events import Event
from playground.format import duration, number, ratio

if TYPE_CHECKING:  # the kinds of experiments would slow every command down
    from playground.experiments.session import Run


HZ = 5  # polls of a run's events per second


def follow(run: Run, max_new_tokens: int = 1) -> PlaygroundError | None:
    """Draws a run until it has ended, and returns its error. Ctrl-C stops it."""
    with progress_bar(max_new_tokens) as draw:
        try:
            for batch in run.batches():
                for event in batch:
                    draw(event)
                run.wait(1 / HZ)
        except PlaygroundError as error:
            return error
        except KeyboardInterrupt:
            run.stop()
            run.wait()
    return run.end.result()


@contextmanager
def progress_bar(max_new_tokens: int) -> Iterator[Callable[[Event], None]]:
    """Yields an `emit` that draws a run's events as bars on standard error if that is a terminal. Ended and skipped
    parts are printed as lines above the bars."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("Starting", total=None)
        lanes: list[TaskID] = []  # the bars of those that run

        def say(line: str) -> None:
            bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

        def emit(event: Event) -> None:
            match event:
                case events.Progress(label, fraction):
                    bars.update(task, description=label, total=1, completed=fraction or 0, visible=True)
                case events.LaneStarted(_, lane):
                    bars.update(task, visible=False)
                    lanes.append(bars.add_task(lane.name, total=max_new_tokens))
                case events.LaneSkipped(lane, reason, index):
                    say(f"playground: left out {lane.name}: {reason}")
                    if index < len(lanes):
                        bars.remove_task(lanes.pop(index))
                case events.PromptDone():
                    say(_prompt(event))
                case events.LevelDone():
                    say(_level(event))
                case events.RoundDone(index, round_):
                    bars.advance(lanes[index], len(round_.tokens))
                case events.LaneFinished(index, _):
                    bars.update(lanes[index], completed=max_new_tokens)

        yield emit


def _prompt(event: events.PromptDone) -> str:
    """Returns a line such as "3 of 24, qa: ngram 5 1.42×; about 4 min left"; with the stage in front, if there are
    several."""
    failure = event.result.failure
    speedups = ", ".join(f"{lane} {ratio(speedup)}" for lane, speedup in event.speedups.items())
    said = ": ".join(filter(None, [event.category, failure.reason if failure else speedups]))
    stage = f"{event.stage}, " if event.stage else ""
    return f"{stage}{event.number} of {event.total}, {said}{_left(event)}"


def _level(event: events.LevelDone) -> str:
    """Returns a line such as "3 of 12, vLLM: ngram at 2 users: 16 answered, 41.2 tok/s in all; about 4 min left"."""
    point = event.points[-1]
    failed = f", {point.failed} failed" if point.failed else ""
    said = f"{point.requests} answered{failed}, {number(point.tokens_per_s, 1)} tok/s in all"
    return f"{event.number} of {event.total}, {point.lane} at {point.level.words}: {said}{_left(event)}"


def _left(event: events.PartDone) -> str:
    return f"; about {duration(event.left_s)} left" if event.left_s else ""
