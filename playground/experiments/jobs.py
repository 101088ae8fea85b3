"""Long experiments that run on their own: listed in the history while they run, stopped and resumed by their ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from typing import Any

from playground import export, results, validation
from playground.errors import PlaygroundError, check
from playground.experiments.events import Event, LevelDone, Progress, PromptDone, ResultReady, Watch
from playground.experiments.history import COMPARE, Entry, History, Status
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.traffic import Traffic
from playground.experiments.runner import Run, Runner
from playground.experiments.work import Experiment
from playground.presets import Pair
from playground.results import Result
from playground.trace import Comparison

logger = logging.getLogger(__name__)

WAITING = "Waiting for the device"


class Jobs:
    """The experiments of this process.

    Args:
        prepared: returns what a run does to run work on a pair; the pair is None where servers alone decode.

    Attributes:
        runs: by the experiment's id.
    """

    def __init__(
        self, history: History, prepared: Callable[[Pair | None, Experiment], Callable[[Watch], object]], runner: Runner
    ) -> None:
        self._history, self._prepared, self._runner = history, prepared, runner
        self.runs: dict[str, Run] = {}

    def start(self, work: Experiment, title: str, asked: Mapping[str, Any] | None = None, owner: str = "") -> str:
        """Starts an experiment and returns its id at once. Its rows go to a record in the history's folder. `asked`:
        see `History.add`. If it leaves out all texts, only the result is stored."""
        kind = next(name for name, kind in KINDS.items() if type(work) is kind.experiment)
        if isinstance(work, Traffic) and not work.texts:
            name = self._history.add(kind, title, None, owner)
            self._begin(name, work)
        else:
            name = self._history.add(kind, title, _data(work), owner, asked)
            self._begin(name, _on_record(work, self._history, name))
        return name

    def unfinished(self, work: Experiment, owner: str = "") -> str | None:
        """Returns the id of the newest experiment with the same settings that was stopped or failed; None if there is
        none."""
        return self._history.unfinished(_data(work), owner)

    def resume(self, name: str, owner: str = "") -> None:
        """Continues an experiment that was stopped or failed from where it ended.

        Raises:
            PlaygroundError: there is no such experiment, or it runs.
        """
        work, entry = _work(self._history, name, owner), self.entry(name, owner)
        check(entry.status != "running", f"{entry.title} runs already.")
        self._begin(name, work)

    def entry(self, name: str, owner: str = "") -> Entry:
        """Returns the history's entry, with the right end even if the history could not be written.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        entry, run = self._history.entry(name, owner), self.runs.get(name)
        if run is None or not run.end.done():
            return entry
        status, note = _outcome(run, run.end.result())
        return replace(entry, status=status, note=note)

    def stop(self, name: str, owner: str = "") -> None:
        """Ends an experiment within one round, and returns at once. Finished rows remain.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        self._history.entry(name, owner)
        if run := self.runs.get(name):
            run.stop()

    def result(self, name: str, owner: str = "") -> Result | None:
        """Returns the result so far, of all questions or the finished ones; None before the first.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        result = kept(self._history, name, owner)
        assert not isinstance(result, Comparison), "a job is no comparison"
        return result

    def _begin(self, name: str, work: Experiment) -> None:
        self._history.update(name, "running", note=WAITING)
        act = self._prepared(work.pair, work)
        self.runs[name] = self._runner.start(
            Run(
                lambda watch: act(replace(watch, emit=partial(self._take, name, watch))),
                ended=lambda run, error: self._note(name, *_outcome(run, error)),
            )
        )

    def _take(self, name: str, watch: Watch, event: Event) -> None:
        """Stores an event before its readers see it."""
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
        watch.emit(event)

    def _note(self, name: str, status: Status, note: str = "", **more: Any) -> None:
        """Updates the history. If it cannot be written, the experiment continues: its rows are in the record."""
        try:
            self._history.update(name, status, note=note, **more)
        except PlaygroundError as error:
            logger.warning("the history does not have that experiment %s is %s: %s", name, status, error)


def _outcome(run: Run, error: PlaygroundError | None) -> tuple[Status, str]:
    """Returns how a run ended, and why if it failed."""
    if error:
        return "failed", str(error)
    return ("stopped" if run.watch.stopped() else "finished"), ""


def opened(history: History, name: str, owner: str = "") -> Result | Comparison:
    """Returns the result of an experiment, like `kept`.

    Raises:
        PlaygroundError: the owner has no such experiment, or it has no result yet.
    """
    result = kept(history, name, owner)
    if result is None:
        raise PlaygroundError(f"{name} has no result yet: no prompt has ended.")
    return result


def kept(history: History, name: str, owner: str = "") -> Result | Comparison | None:
    """Returns the result that the history has of an experiment, which may be running or stopped; None before its first
    prompt.

    Raises:
        PlaygroundError: the owner has no such experiment.
    """
    data = history.result(name, owner)
    if history.entry(name, owner).kind == COMPARE:
        return export.from_json(data)
    if data:
        return results.from_json(data)
    return _work(history, name, owner).so_far() if history.work(name, owner) else None


def _work(history: History, name: str, owner: str) -> Experiment:
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
