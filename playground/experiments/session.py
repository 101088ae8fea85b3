"""All work of a process: it waits for the device, runs in a thread of its own, ends, and is kept in the history.

Page, terminal and endpoints run everything through a `Session`. Gradio resumes a generator only after it has sent the
last yield, so a decode loop that yields to the page would measure the page. Here the work only appends to a list, which
any number of watchers read; waiting and watching need no thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextvars import copy_context
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from typing import Any

from playground import results, validation
from playground.errors import INTERNAL, PlaygroundError, check
from playground.experiments.events import Event, LevelDone, Progress, PromptDone, ResultReady, Watch
from playground.experiments.history import COMPARE, Entry, History, Status
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.traffic import Traffic
from playground.experiments.work import Experiment, Work
from playground.presets import Pair
from playground.results import Result
from playground.trace import Comparison
from playground.views import headline

logger = logging.getLogger(__name__)

WAITING = "Waiting for the device"


class Run:
    """A run of `work(watch)`, which is expected to return soon after it is stopped.

    Attributes:
        events: all events so far.
        began: by `time.monotonic`; None while it waits.
        end: done after the last event; its result is the error that the work raised, as a PlaygroundError.
    """

    def __init__(
        self,
        work: Callable[[Watch], object],
        ended: Callable[[Run, PlaygroundError | None], None] = lambda run, error: None,
    ) -> None:
        """`ended` is called before `end` is done, with the error of the work."""
        self.events: list[Event] = []
        self.began: float | None = None
        self.end: futures.Future[PlaygroundError | None] = futures.Future()
        self.end.set_running_or_notify_cancel()  # so that no waiting reader can cancel it
        self.watch = Watch(self.events.append)
        self._work, self._ended = work, ended
        self._context = copy_context()  # Gradio's, which says who pressed the button
        self._once = threading.Lock()  # held while the run begins, or is stopped before

    def begin(self) -> None:
        """Starts the thread, unless the run has begun or was stopped."""
        if self._once.acquire(blocking=False):
            self.began = time.monotonic()
            threading.Thread(target=self._context.run, args=(self._act,), name="decoding", daemon=True).start()

    def stop(self) -> None:
        """Asks the work to end, and returns at once."""
        self.watch.stop()
        if self._once.acquire(blocking=False):
            self._finish(None)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end, at most this many seconds."""
        futures.wait([self.end], seconds)

    def batches(self) -> Iterator[list[Event]]:
        """Yields the events since the last batch, without waiting for more, until the end.

        Raises:
            PlaygroundError: the work raised it, after its last events.
        """
        seen, over = 0, False
        while not over:
            over = self.end.done()  # read before the events, so that the last are not missed
            batch = self.events[seen:]
            seen += len(batch)
            yield batch
        if error := self.end.result():
            raise error

    def _act(self) -> None:
        error = None
        try:
            self._work(self.watch)
        except PlaygroundError as problem:
            error = problem
        except BaseException:
            logger.exception("a run failed")
            error = PlaygroundError(INTERNAL)
        self._finish(error)

    def _finish(self, error: PlaygroundError | None) -> None:
        try:
            self._ended(self, error)
        except BaseException:
            logger.exception("the end of a run was not noted")
            error = error or PlaygroundError(INTERNAL)
        self.end.set_result(error)


class Session:
    """Runs work, one at a time on the device, first come, first served. It may be used from several threads.

    A comparison is a run with a reader. An experiment is listed in the history from its start, needs no reader, and is
    stopped and resumed by its id.

    Args:
        history: keeps experiments and their results.
        decode: runs work on a pair: `decode(pair, work, watch)`. The pair is None where servers alone decode.

    Attributes:
        runs: those of experiments, by their ids.
    """

    def __init__(self, history: History, decode: Callable[[Pair | None, Work, Watch], object]) -> None:
        self.history, self._decode = history, decode
        self.runs: dict[str, Run] = {}
        self._queue: list[Run] = []  # the first has the device
        self._lock = threading.Lock()

    def add(self, run: Run) -> Run:
        """Begins a run once the earlier ones have ended."""
        with self._lock:
            self._queue.append(run)
            first = self._queue[0]
        run.end.add_done_callback(lambda _: self._leave(run))
        first.begin()
        return run

    def ahead(self, run: Run) -> int:
        """Returns how many runs are ahead of this one."""
        with self._lock:
            return self._queue.index(run) if run in self._queue else 0

    def _leave(self, run: Run) -> None:
        with self._lock:
            self._queue.remove(run)
            following = self._queue[:1]
        for each in following:
            each.begin()

    def start(self, work: Experiment, title: str, values: Mapping[str, Any] | None = None) -> str:
        """Starts an experiment and returns its id at once. Its rows go to a record in the history's folder. `values`:
        see `History.add`. If it leaves out all texts, only the result is stored."""
        kind = next(name for name, kind in KINDS.items() if type(work) is kind.experiment)
        if isinstance(work, Traffic) and not work.texts:
            name = self.history.add(kind, title, None)
            self._begin(name, work)
        else:
            name = self.history.add(kind, title, _data(work), values=values)
            self._begin(name, _on_record(work, self.history, name))
        return name

    def unfinished(self, work: Experiment) -> str | None:
        """Returns the id of the newest experiment with the same settings that was stopped or failed; None if there is
        none."""
        return self.history.unfinished(_data(work))

    def resume(self, name: str) -> None:
        """Continues an experiment that was stopped or failed from where it ended.

        Raises:
            PlaygroundError: there is no such experiment, or it runs.
        """
        work, entry = _work(self.history, name), self.entry(name)
        check(entry.status != "running", f"{entry.title} runs already.")
        self._begin(name, work)

    def entry(self, name: str) -> Entry:
        """Returns the history's entry, with the right end even if the history could not be written.

        Raises:
            PlaygroundError: there is no such experiment.
        """
        entry, run = self.history.entry(name), self.runs.get(name)
        if run is None or not run.end.done():
            return entry
        status, note = _outcome(run, run.end.result())
        return replace(entry, status=status, note=note)

    def stop(self, name: str) -> None:
        """Ends an experiment within one round, and returns at once. Finished rows remain.

        Raises:
            PlaygroundError: there is no such experiment.
        """
        self.history.entry(name)
        if run := self.runs.get(name):
            run.stop()

    def result(self, name: str) -> Result | None:
        """Returns the result so far, of all questions or the finished ones; None before the first.

        Raises:
            PlaygroundError: there is no such experiment.
        """
        result = stored(self.history, name)
        assert not isinstance(result, Comparison), "a comparison is no experiment"
        return result

    def _begin(self, name: str, work: Experiment) -> None:
        self.history.update(name, "running", note=WAITING)
        self.runs[name] = self.add(
            Run(
                lambda watch: self._decode(work.pair, work, replace(watch, emit=partial(self._take, name, watch))),
                ended=lambda run, error: self._note(name, *_outcome(run, error)),
            )
        )

    def _take(self, name: str, watch: Watch, event: Event) -> None:
        """Stores an event before its readers see it."""
        match event:
            case Progress(label, fraction):
                self._note(name, "running", label, fraction=fraction)
            case PromptDone():
                self._note(name, "running", fraction=event.fraction)
                event = replace(event, result=replace(event.result, traces=()))  # they are in the record
            case LevelDone(number, total):
                self._note(name, "running", fraction=number / total)
            case ResultReady(result):
                self._note(name, "running", result=results.to_json(result))
                return  # `result` reads it
        watch.emit(event)

    def _note(self, name: str, status: Status, note: str = "", **more: Any) -> None:
        """Updates the history. If it cannot be written, the experiment continues: its rows are in the record."""
        try:
            self.history.update(name, status, note=note, **more)
        except PlaygroundError as error:
            logger.warning("the history does not have that experiment %s is %s: %s", name, status, error)


def _outcome(run: Run, error: PlaygroundError | None) -> tuple[Status, str]:
    """Returns how a run ended, and why if it failed."""
    if error:
        return "failed", str(error)
    return ("stopped" if run.watch.stopped() else "finished"), ""


def keep(history: History, comparison: Comparison, chosen: str, owner: str = "", name: str = "") -> str:
    """Stores a comparison and returns its id. `chosen`: the lane that its title names. `name`: see `History.keep`.

    Raises:
        PlaygroundError: the history cannot be written.
    """
    title = headline.title(comparison, chosen)
    return history.keep(COMPARE, title, results.to_json(comparison), owner, name)


def opened(history: History, name: str, owner: str = "") -> Result | Comparison:
    """Returns the result of an experiment, like `stored`.

    Raises:
        PlaygroundError: the owner has no such experiment, or it has no result yet.
    """
    result = stored(history, name, owner)
    if result is None:
        raise PlaygroundError(f"{name} has no result yet: no prompt has ended.")
    return result


def stored(history: History, name: str, owner: str = "") -> Result | Comparison | None:
    """Returns the result that the history has of an experiment, which may be running or stopped; None before its first
    prompt.

    Raises:
        PlaygroundError: the owner has no such experiment.
    """
    if data := history.result(name, owner):
        return results.from_json(data)
    return _work(history, name, owner).so_far() if history.work(name, owner) else None


def _work(history: History, name: str, owner: str = "") -> Experiment:
    entry = history.entry(name, owner)
    check(entry.kind in KINDS, f"{entry.title} is one comparison, which has nothing to go on with. Run it again.")
    data = history.work(name, owner)
    check(data is not None, f"{entry.title} ran without texts, so there is nothing to go on with. Run it again.")
    work = validation.read(KINDS[entry.kind].experiment, data, extra="ignore")
    return _on_record(work, history, name)


def _data(work: Experiment) -> dict[str, Any]:
    """Returns the work as plain data for JSON, from which `validation.read` restores it."""
    assert is_dataclass(work) and not isinstance(work, type)
    return asdict(work)


def _on_record(work: Experiment, history: History, name: str) -> Experiment:
    changed: Any = work
    return replace(changed, record=str(history.record(name)))
