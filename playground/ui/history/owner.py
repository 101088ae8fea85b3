"""Whose history a page shows; and on Compare, how a run gets into it and is shown again."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.errors import PlaygroundError
from playground.ui.compare.handlers import Handlers
from playground.ui.history.visible import VisibleHistory
from playground.views import scripts

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


def owner_of(after: Callable[..., Dependency], past: VisibleHistory) -> tuple[gr.State, Dependency]:
    """Who looks at a page, and the event after which that is known. `after`: what starts that event, with the arguments
    of `page.load`."""
    owner, key = gr.State(""), gr.JSON(visible=False)
    script = f"() => {scripts.bundle('owner.js')}.keyOfBrowser()"
    return owner, after(past.owner, key, owner, js=script, **QUIET)


def wire(
    past: VisibleHistory,
    events: Handlers,
    after: Callable[..., Dependency],
    shown: gr.State,
    filled: Sequence[Any],
    finished: Sequence[Dependency],
) -> None:
    """Shows the comparison that the page's address names, and keeps each that ends.

    Args:
        after: as in `owner_of`.
        filled: the outputs of `Handlers.show`.
        finished: the ends of runs.
    """

    def of_address(owner: str, request: gr.Request) -> Sequence[Any]:
        nothing = [gr.skip()] * len(filled)
        if not (name := request.query_params.get("id")):
            return nothing
        try:
            return events.show(past.comparison(owner, name), "the history", own=True)
        except PlaygroundError as problem:
            gr.Warning(html.escape(str(problem)))  # which takes HTML
            return nothing

    owner, known = owner_of(after, past)
    known.then(of_address, owner, filled, **QUIET)
    for end in finished:
        end.then(past.keep, [owner, shown], None, **QUIET)
