"""A long experiment in the terminal: shown while it runs, stopped by Ctrl-C, taken up where it was stopped."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from playground.commands.progress_bar import progress_bar
from playground.errors import PlaygroundError

if TYPE_CHECKING:  # torch would slow every command down
    from playground.experiments.background import BackgroundRun
    from playground.experiments.work import Experiment, Work
    from playground.presets import Pair
    from playground.results import Result


def run(work: Experiment, title: str, *, again: bool, device: str = "auto") -> Result:
    """Runs it as a job, which the history lists. Exits with 130 if it was stopped.

    Args:
        again: begin anew, also if the same was stopped before.
        device: as `LocalBackend` takes it.

    Raises:
        PlaygroundError: it failed.
    """
    from playground.backends.device_queue import DeviceQueue
    from playground.backends.local import LocalBackend
    from playground.experiments.background import BackgroundRun
    from playground.experiments.history import open_history
    from playground.experiments.jobs import Jobs
    from playground.lane import LOCAL
    from playground.models.store import ModelStore

    store, history = ModelStore(), open_history()

    def start(pair: Pair | None, work: Work) -> BackgroundRun:
        backends = {LOCAL: LocalBackend(store, pair, device=device)} if pair else {}
        return BackgroundRun(partial(work, backends))

    jobs = Jobs(history, start, DeviceQueue())
    name = None if again else jobs.unfinished(work)
    if name:
        print(f"playground: going on with {name}, which was stopped (--again begins anew)", file=sys.stderr)
        jobs.resume(name)
    else:
        name = jobs.start(work, title)
    with progress_bar(1) as draw:
        try:
            for event in (event for batch in jobs.watch(name) for event in batch):
                draw(event)
        except KeyboardInterrupt:
            jobs.stop(name)
            for _ in jobs.watch(name):
                pass
    result, entry = jobs.result(name), jobs.entry(name)
    if entry.status == "failed":
        raise PlaygroundError(entry.note)
    if entry.status == "stopped":
        kept = "; the same command goes on" if history.kept else ""
        print(f"playground: stopped, {entry.fraction:.0%} done{kept}", file=sys.stderr)
        sys.exit(130)
    assert result, "it ended by itself"
    return result
