"""Work at servers that one browser session watches. It ends with Stop, or when nobody reads it any more."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from anyio import to_thread

from playground.errors import INTERNAL, PlaygroundError
from playground.experiments.background import BackgroundRun, Work
from playground.experiments.events import Event
from playground.hosting.access import Access
from playground.hosting.readers import Reader

logger = logging.getLogger(__name__)

HZ = 2
END: Any = object()


class ServerRuns:
    """One run for each browser session; visitors of a public link have none."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._runs: dict[str, BackgroundRun] = {}

    async def follow(self, session: str, work: Work) -> AsyncGenerator[list[Event], None]:
        """Runs `work(watch)` and yields its events HZ times a second, an empty list where there are none.

        Raises:
            PlaygroundError: visitors may not, or the work failed.
        """
        self.allowed()
        run, reader = BackgroundRun(work), Reader()
        self._runs[session] = run
        batches = run.drain(HZ)
        try:
            while (batch := await to_thread.run_sync(next, batches, END)) is not END:
                yield batch
                if reader.left():
                    run.stop()
        except PlaygroundError:
            raise
        except Exception:
            logger.exception("work at a server failed")
            raise PlaygroundError(INTERNAL) from None
        finally:
            run.stop()
            del self._runs[session]

    def stop(self, session: str) -> None:
        if run := self._runs.get(session):
            run.stop()

    def allowed(self) -> None:
        """Raises:
        PlaygroundError: visitors may not.
        """
        self._access.check_servers()
