"""How handlers are wired: by the names of the components that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

# Gradio tells each output of an event how it gets on, and all outputs of every earlier event with it, each time a run
# has something new. To no output, here.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
QUIET: dict[str, Any] = {**PRIVATE, "queue": False}
UNBOUNDED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}

Named = dict[str, Any]  # values or updates of components by their names; the others stay as they are
Filled = dict[Any, Any]  # the same by the components themselves, as Gradio takes them


class Gathered:
    """The values of many controls as one input of an event.

    Gradio tells each input of an event that has ended how every later event gets on, each time a run has something
    new, and copies its value. With thirty controls that slows a browser. This one gathers them without asking
    the server, and Gradio keeps no account of such an event.
    """

    def __init__(self, controls: Sequence[Component]) -> None:
        self._controls = [*controls]
        self.input = gr.JSON(visible=False)

    def after(self, event: Callable[..., Dependency]) -> Dependency:
        """Gathers them when this happens. What needs them comes after it, with `input`."""
        return event(None, self._controls, self.input, js="(...values) => [values]", **QUIET)

    def read(self, gathered: Any) -> list[Any]:
        """Their values from that of `input`, as the browser sent them: no control has checked them.

        Raises:
            gr.Error: they are not as many, because the page is older than the program or a stranger made them up.
        """
        if not isinstance(gathered, list) or len(gathered) != len(self._controls):
            raise gr.Error("This page does not match the running program. Reload it.", print_exception=False)
        return gathered


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
