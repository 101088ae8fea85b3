"""How handlers are wired: by the names of the components that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

# Gradio tells each output of an event how it gets on, and all outputs of every earlier event with it, each time a run
# has something new. To no output, here.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
QUIET: dict[str, Any] = {**PRIVATE, "queue": False}
UNBOUNDED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}

Named = dict[str, Any]  # values or updates of components by their names; the others stay as they are
Filled = dict[Any, Any]  # the same by the components themselves, as Gradio takes them


def picked(dropdown: gr.Dropdown, act: Callable[[str], Any], outputs: Any) -> None:
    """What `act` makes of another choice of the user. Gradio's own event comes as well when the dropdown is only left,
    and would put back what follows from a choice and was changed since."""
    before = gr.Textbox(str(dropdown.value), visible=False)
    dropdown.input(
        lambda chosen, before: gr.skip() if chosen == before else act(chosen), [dropdown, before], outputs, **QUIET
    )
    dropdown.change(None, dropdown, before, js="(chosen) => chosen", **QUIET)


def filled(components: Mapping[str, Any], values: Named) -> Filled:
    """What a handler returns to Gradio."""
    return {components[name]: value for name, value in values.items()} or gr.skip()
