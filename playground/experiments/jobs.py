"""Long experiments that run on while nobody watches: each in a thread, in the history while it runs, stopped and taken
up again by its id."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

from playground import export, results, validation
from playground.backends.device_queue import DeviceQueue
from playground.errors import INTERNAL, PlaygroundError, check
from playground.experiments.background import Run
from playground.experiments.events import Event, LevelDone, Progress, PromptDone, ResultReady
from playground.experiments.history import COMPARE, Entry, History, Status
from playground.experiments.work import EXPERIMENTS, Experiment
from playground.presets import Pair
from playground.results import Result
from playground.trace import Comparison

logger = logging.getLogger(__name__)

HZ = 5
WAITING = "Waiting for the device"


@dataclass
class _Job:
    stopped: bool = False
    run: Run | None = None  # it waits for the device
    ended: tuple[Status, str] | None = None  # with what the history should note; a full disk may have kept it from it
    events: list[Event] = field(default_factory=list)
    # Not the thread: before Python 3.13 one that Ctrl-C interrupts the wait for counts as ended.
    over: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The experiments of this process.

    Args:
        start: starts work on a pair; on None what servers alone decode.
        queue: where it waits for the device.
    """

    def __init__(self, history: History, start: Callable[[Pair | None, Experiment], Run], queue: DeviceQueue) -> None:
        self._history, self._start, self._queue = history, start, queue
        self._jobs: dict[str, _Job] = {}

    def start(self, work: Experiment, title: str, owner: str = "") -> str:
        """Starts an experiment and returns its id at once. Its rows go to a record in the history's folder."""
        kind = next(name for name, kind in EXPERIMENTS.items() if isinstance(work, kind))
        name = self._history.add(kind, title, _data(work), owner)
        self._begin(name, _on_record(work, self._history, name))
        return name

    def unfinished(self, work: Experiment, owner: str = "") -> str | None:
        """The newest experiment with the same settings that was stopped, or failed."""
        return self._history.unfinished(_data(work), owner)

    def resume(self, name: str, owner: str = "") -> None:
        """Goes on with an experiment that was stopped, or failed, where it ended.

        Raises:
            PlaygroundError: there is no such experiment, or it runs.
        """
        work, entry = _work(self._history, name, owner), self.entry(name, owner)
        check(entry.status != "running", f"{entry.title} runs already.")
        self._begin(name, work)

    def events(self, name: str, since: int = 0) -> list[Event]:
        """What has happened, without the first `since` events; nothing for an experiment of another process."""
        job = self._jobs.get(name)
        return job.events[since:] if job else []

    def running(self, name: str) -> bool:
        job = self._jobs.get(name)
        return job is not None and not job.over.is_set()

    def watch(self, name: str, hz: float = HZ) -> Iterator[list[Event]]:
        """Yields what has happened since the last time, until the experiment ends. It runs on without a watcher."""
        seen, job = 0, self._jobs[name]
        while True:
            ended = job.over.is_set()  # read before the events, so that the last are not missed
            batch = self.events(name, seen)
            seen += len(batch)
            yield batch
            if ended:
                return
            job.over.wait(1 / hz)

    def entry(self, name: str, owner: str = "") -> Entry:
        """As the history has it, and how it ended even if the history could not be written.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        entry, job = self._history.entry(name, owner), self._jobs.get(name)
        return replace(entry, status=job.ended[0], note=job.ended[1]) if job and job.ended else entry

    def stop(self, name: str, owner: str = "") -> None:
        """Ends it within one round; returns at once. What was finished stays.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        self._history.entry(name, owner)
        if job := self._jobs.get(name):
            job.stopped = True
            if job.run:
                job.run.stop()

    def result(self, name: str, owner: str = "") -> Result | None:
        """What there is of it: all, or the questions that were finished; None before the first.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        result = kept(self._history, name, owner)
        assert not isinstance(result, Comparison), "a job is no comparison"
        return result

    def _begin(self, name: str, work: Experiment) -> None:
        self._history.update(name, "running", note=WAITING)
        self._jobs[name] = _Job()
        threading.Thread(target=self._follow, args=(name, work), name=f"experiment {name}", daemon=True).start()

    def _follow(self, name: str, work: Experiment) -> None:
        job = self._jobs[name]
        try:
            job.ended = self._outcome(name, job, work)
            self._note(name, *job.ended)
        finally:
            job.over.set()

    def _outcome(self, name: str, job: _Job, work: Experiment) -> tuple[Status, str]:
        ticket = self._queue.join()
        try:
            while self._queue.ahead(ticket) and not job.stopped:
                time.sleep(1 / HZ)
            if not job.stopped:
                job.run = self._start(work.pair, work)
                for batch in job.run.drain(HZ):
                    if job.stopped:
                        job.run.stop()
                    for event in batch:
                        self._take(name, job, event)
            return ("stopped" if job.stopped else "finished"), ""
        except PlaygroundError as problem:
            return "failed", str(problem)
        except Exception:
            logger.exception("experiment %s failed", name)
            return "failed", INTERNAL
        finally:
            self._queue.leave(ticket)

    def _take(self, name: str, job: _Job, event: Event) -> None:
        match event:
            case Progress(label):
                self._note(name, "running", label)
            case PromptDone():
                self._note(name, "running", fraction=event.fraction)
                event = replace(event, result=replace(event.result, traces=()))  # they are in the record
            case LevelDone(number, total):
                self._note(name, "running", fraction=number / total)
            case ResultReady(result):
                self._note(name, "running", result=results.to_json(result))
        job.events.append(event)

    def _note(self, name: str, status: Status, note: str = "", **more: Any) -> None:
        """In the history. Where it cannot be written, the experiment goes on: its rows are in the record."""
        try:
            self._history.update(name, status, note=note, **more)
        except sqlite3.Error as error:
            logger.warning("the history does not have that experiment %s is %s: %s", name, status, error)


def opened(history: History, name: str, owner: str = "") -> Result | Comparison:
    """As `kept`.

    Raises:
        PlaygroundError: the owner has no such experiment, or it has no result yet.
    """
    result = kept(history, name, owner)
    if result is None:
        raise PlaygroundError(f"{name} has no result yet: no prompt has ended.")
    return result


def kept(history: History, name: str, owner: str = "") -> Result | Comparison | None:
    """What the history has of an experiment, also of one that runs or was stopped: None before its first prompt.

    Raises:
        PlaygroundError: the owner has no such experiment.
    """
    data = history.result(name, owner)
    if history.entry(name, owner).kind == COMPARE:
        return export.from_json(data)
    return results.from_json(data) if data else _work(history, name, owner).so_far()


def _work(history: History, name: str, owner: str) -> Experiment:
    entry = history.entry(name, owner)
    check(entry.kind in EXPERIMENTS, f"{entry.title} is one comparison, which has nothing to go on with. Run it again.")
    work = validation.read(EXPERIMENTS[entry.kind], history.work(name, owner), extra="ignore")
    return _on_record(work, history, name)


def _data(work: Experiment) -> dict[str, Any]:
    """As JSON takes it, and `validation.read` reads it."""
    assert is_dataclass(work) and not isinstance(work, type)
    return asdict(work)


def _on_record(work: Experiment, history: History, name: str) -> Experiment:
    changed: Any = work
    return replace(changed, record=str(history.record(name)))
