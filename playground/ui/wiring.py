"""Wiring of handlers: their values go to components by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

# Gradio reports an event's progress to each of its outputs, and to all outputs of every earlier event, each time a run
# has news. The empty list turns that off.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
QUIET: dict[str, Any] = {**PRIVATE, "queue": False}
UNBOUNDED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}

Named = dict[str, Any]  # values or updates of components by their names; the others do not change
Filled = dict[Any, Any]  # values or updates by the components themselves, as Gradio takes them


class Gathered:
    """The values of many controls as one input of an event.

    Gradio reports the progress of every later event to each input of an event that has ended, each time a run has news,
    and copies its value. With thirty controls that slows a browser. This class gathers the values without the server,
    and
    Gradio tracks no progress of such an event.
    """

    def __init__(self, controls: Sequence[Component]) -> None:
        self.controls = [*controls]
        self.input = gr.JSON([it.value for it in controls], visible=False)

    def after(self, event: Callable[..., Dependency]) -> Dependency:
        """Gathers the values when this event happens. Events that need them come after it, with `input`."""
        return event(None, self.controls, self.input, js="(...values) => [values]", **QUIET)

    def read(self, gathered: Any) -> list[Any]:
        """Returns the controls' values from that of `input`, as the browser sent them: no control has checked them.

        Raises:
            gr.Error: their number is wrong, because the page is older than the program or a stranger made them up.
        """
        if not isinstance(gathered, list) or len(gathered) != len(self.controls):
            raise gr.Error("This page does not match the running program. Reload it.", print_exception=False)
        return gathered


def in_browser(changes: Mapping[str, Sequence[Component]]) -> tuple[list[Component], str]:
    """Returns components, and a JavaScript list of their updates, for an event that the browser handles alone.

    Args:
        changes: the properties that change, as JavaScript, to the components that get them.
    """
    outputs = [part for parts in changes.values() for part in parts]
    updates = [f"{{__type__: 'update', {change}}}" for change, parts in changes.items() for _ in parts]
    return outputs, f"[{', '.join(updates)}]"


WRITTEN = "written-file"


def download(press: Callable[..., Dependency], write: Callable, inputs: Any, outputs: Any, **more: Any) -> None:
    """Writes a file when something is pressed, and then presses the hidden button WRITTEN, which downloads it.

    Args:
        write: returns that button's update; without a value, nothing is downloaded.
        inputs, outputs, more: further arguments of the event `press`.
    """
    script = f"() => document.getElementById('{WRITTEN}').click()"
    press(write, inputs, outputs, **more, **PRIVATE).success(None, None, None, js=script, **PRIVATE)


def picked(dropdown: gr.Dropdown, act: Callable[[str], Any], outputs: Any) -> None:
    """Fills `outputs` with what `act` returns when the user chooses another value. Gradio's own event also comes when
    the dropdown only loses focus, and would undo later changes."""
    before = gr.Textbox(str(dropdown.value), visible=False)
    dropdown.input(
        lambda chosen, before: gr.skip() if chosen == before else act(chosen), [dropdown, before], outputs, **QUIET
    )
    dropdown.change(None, dropdown, before, js="(chosen) => chosen", **QUIET)


def filled(components: Mapping[str, Any], values: Named) -> Filled:
    """Returns the values by component, as a handler returns them to Gradio."""
    return {components[name]: value for name, value in values.items()} or gr.skip()
