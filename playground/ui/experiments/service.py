"""Starts, watches and stops long experiments for pages and endpoints.

An experiment continues when nobody watches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from anyio import to_thread

from playground.errors import PlaygroundError, check
from playground.experiments.events import LevelDone, PartDone, PromptDone
from playground.experiments.history import Entry
from playground.experiments.session import Session
from playground.hosting.access import OWN_MACHINE, Access
from playground.hosting.turns import Reader
from playground.results import Result
from playground.views import report
from playground.views.report import Report

HZ = 2  # polls per second; the experiment decodes on the same cores
UNFINISHED = "Stopped before the end: the figures are of what had finished by then."
REFUSED = f"Long experiments are disabled here: they would block other users. To run them, {OWN_MACHINE}."


@dataclass(frozen=True)
class View:
    """An experiment at one moment. `done`: the parts that have ended while this process ran it. `result`: the result so
    far, once it has ended."""

    entry: Entry
    done: tuple[PartDone, ...] = ()
    result: Result | None = None

    @property
    def report(self) -> Report | None:
        """The sentences, charts and tables of the result; None without a result."""
        if self.result is None:
            return None
        found = report.of(self.result)
        return found if self.entry.status == "finished" else replace(found, findings=[UNFINISHED, *found.findings])


class Experiments:
    """The experiments of this machine's user; visitors of a public link have none."""

    def __init__(self, session: Session, access: Access) -> None:
        self._session, self._access = session, access

    @property
    def refusal(self) -> str:
        """Why there are no experiments here; "" where there are."""
        return REFUSED if self._access.public else ""

    @property
    def session(self) -> Session:
        """The session, to start, resume and stop experiments.

        Raises:
            PlaygroundError: visitors may not run experiments.
        """
        check(not self._access.public, REFUSED)
        return self._session

    def entries(self, search: str = "") -> list[Entry]:
        """Returns the experiments of this machine, the newest first.

        Raises:
            PlaygroundError: visitors may not see them.
        """
        return self.session.history.entries(search=search)

    def running(self, kind: str) -> str:
        """Returns the id of a running experiment of this kind; "" if there is none, and for visitors."""
        entries = [] if self._access.public else self.entries()
        return next((it.id for it in entries if it.kind == kind and it.status == "running"), "")

    def started_with(self, name: str) -> dict[str, Any]:
        """Returns the controls' values that an experiment was started with; none for visitors or an unknown
        experiment."""
        with suppress(PlaygroundError):
            return self.session.history.started_with(name)
        return {}

    def view(self, name: str) -> View:
        """Returns an experiment as it is now.

        Raises:
            PlaygroundError: there is no such experiment, or visitors may not see it.
        """
        entry = self.session.entry(name)
        events = self._session.runs[name].events if name in self._session.runs else []
        done = tuple(event for event in events if isinstance(event, (PromptDone, LevelDone)))
        return View(entry, done, None if entry.status == "running" else self._session.result(name))

    async def watch(self, name: str) -> AsyncGenerator[View, None]:
        """Yields views of an experiment as it changes, until it has ended.

        Raises:
            PlaygroundError: see `view`.
        """
        last, reader = None, Reader()
        while not reader.left():
            view = await to_thread.run_sync(self.view, name)
            if view != last:
                yield view
            if view.entry.status != "running":
                return
            last = view
            await asyncio.sleep(1 / HZ)
