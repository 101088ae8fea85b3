"""A long experiment in the terminal: shown while it runs, stopped by Ctrl-C, taken up where it was stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from playground.commands.progress_bar import progress_bar

if TYPE_CHECKING:  # torch would slow every command down
    from playground.experiments.watch import Watch
    from playground.experiments.work import Experiment, Work
    from playground.presets import Pair
    from playground.results import Result

HZ = 5  # looks at what has happened


def run(work: Experiment, title: str, *, again: bool, device: str = "auto") -> Result:
    """Runs it as a job, which the history lists. Exits with 130 if it was stopped.

    Args:
        again: begin anew, also if the same was stopped before.
        device: as `LocalBackend` takes it.

    Raises:
        PlaygroundError: it failed.
    """
    from playground.backends.local import LocalBackend
    from playground.experiments.history import open_history
    from playground.experiments.jobs import Jobs
    from playground.experiments.runner import Runner
    from playground.lane import LOCAL
    from playground.models.store import ModelStore

    store, history = ModelStore(), open_history()

    def prepared(pair: Pair | None, work: Work) -> Callable[[Watch], None]:
        return partial(work, {LOCAL: LocalBackend(store, pair, device=device)} if pair else {})

    jobs = Jobs(history, prepared, Runner())
    name = None if again else jobs.unfinished(work)
    if name:
        print(f"playground: going on with {name}, which was stopped (--again begins anew)", file=sys.stderr)
        jobs.resume(name)
    else:
        name = jobs.start(work, title)
    job = jobs.runs[name]
    with progress_bar(1) as draw:
        try:
            for batch in job.batches():
                for event in batch:
                    draw(event)
                job.wait(1 / HZ)
        except KeyboardInterrupt:
            job.stop()
            job.wait()
    if error := job.end.result():
        raise error
    result, entry = jobs.result(name), jobs.entry(name)
    if entry.status == "stopped":
        kept = "; the same command goes on" if history.kept else ""
        print(f"playground: stopped, {entry.fraction:.0%} done{kept}", file=sys.stderr)
        sys.exit(130)
    assert result, "it ended by itself"
    return result
