"""What was run and is kept: everything of one's own machine, or on a public link each browser's own comparisons."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground import export
from playground.errors import PlaygroundError, check
from playground.experiments import jobs
from playground.experiments.history import COMPARE, History
from playground.hosting.access import Access
from playground.hosting.size_limits import make_room
from playground.results import Result
from playground.trace import Comparison
from playground.ui import panels
from playground.ui.compare.shown import Shown
from playground.ui.wiring import PRIVATE
from playground.views import headline, result_file, scripts

logger = logging.getLogger(__name__)

KEY = re.compile(r"[0-9a-f]{64}")


class VisibleHistory:
    """The history for whoever looks. Every method takes the owner, which `owner` gives."""

    def __init__(self, history: History, access: Access) -> None:
        self.history, self._access = history, access

    def owner(self, key: object) -> str:
        """Whose experiments a browser with this key sees: on one's own machine everybody's. A browser that keeps no key
        gets an owner for as long as its page is open."""
        if not self._access.public:
            return ""
        return key if isinstance(key, str) and KEY.fullmatch(key) else secrets.token_hex(32)

    def client(self, visitor: str) -> str:
        """Whose experiments a program's are. No browser has them in its list."""
        return f"client {visitor}" if self._access.public else ""

    def keep(self, owner: str, shown: Shown | None) -> str | None:
        """A comparison that has just ended, and its id; not one that was stopped. A repeat replaces what it repeats."""
        if shown is None or not shown.repeatable or (self._access.public and not owner):
            return None
        try:
            return self._keep(owner, shown)
        except PlaygroundError as error:
            logger.warning("the history does not have comparison %s: %s", shown.id, error)
            return None

    def _keep(self, owner: str, shown: Shown) -> str:
        title = headline.title(shown.comparison, shown.chosen)
        return self.history.keep(COMPARE, title, export.to_json(shown.comparison), owner, shown.id)

    def share(self, owner: str, shown: Shown | None) -> str:
        """Keeps a run for whoever has its link, and gives what the link's address asks for. On one's own machine that
        is the run's id in the history. A stranger's run gets a name that nobody guesses; such a link opens this run
        alone, for as long as the history has it.

        Raises:
            PlaygroundError: nothing was run here that could be kept.
        """
        check(shown is not None and shown.repeatable, "Only a finished run of this page can be shared by a link.")
        assert shown
        kept = self._keep(owner, shown)
        return f"shared={self.history.share(kept, owner)}" if self._access.public else f"id={kept}"

    def linked(self, owner: str, query: Mapping[str, str]) -> Comparison | None:
        """The comparison that the page's address names; None if it names none.

        Raises:
            PlaygroundError: it is no longer kept, or another visitor's.
        """
        if name := query.get("shared"):
            entry = self.history.shared(name)
            return self.comparison(entry.owner, entry.id)
        return self.comparison(owner, name) if (name := query.get("id")) else None

    def opened(self, owner: str, name: str) -> Result | Comparison:
        """Raises:
        PlaygroundError: the owner has no such experiment, or it has no result yet.
        """
        return jobs.opened(self.history, name, owner)

    def comparison(self, owner: str, name: str) -> Comparison:
        """Raises:
        PlaygroundError: the owner has no such comparison.
        """
        result = self.opened(owner, name)
        if not isinstance(result, Comparison):
            raise PlaygroundError(f"{name} is no comparison. History leads to it.")
        return result

    def saved(self, owner: str, name: str, form: str) -> dict[str, Any]:
        """An update of a button that downloads it as `result_file.build` makes it.

        Raises:
            PlaygroundError: as `opened`, or it has no such form.
        """
        entry = self.history.entry(name, owner)
        text = result_file.build(self.opened(owner, name), form, entry.title)
        make_room(self._access.limits.files)
        return panels.saved(f"{entry.kind}-{name}{form}", text.encode())


def owner_of(after: Callable[..., Dependency], past: VisibleHistory) -> tuple[gr.State, Dependency]:
    """Who looks at a page, and the event after which that is known. `after`: what starts that event, with the arguments
    of `page.load`."""
    owner, key = gr.State(""), gr.JSON(visible=False)
    script = f"() => {scripts.bundle('owner.js')}.keyOfBrowser()"
    return owner, after(past.owner, key, owner, js=script, **PRIVATE)
