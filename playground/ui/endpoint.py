"""The page's endpoint for other programs: the arguments of `Asked` by name, a comparison back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import gradio as gr

from playground.ui.controls import Asked
from playground.ui.events import Events


def endpoint(events: Events) -> Callable[..., dict]:
    """A function for `gr.api`, which reads names, types and defaults from its signature: those of `Asked`."""

    def compare(request: gr.Request, *values: Any) -> dict:
        """Runs the prompt through standard and assisted decoding, and returns the whole comparison: each lane with its
        settings, environment, rounds and metrics. `pair` is a preset's name, or "own" for `target` and `assistant`.
        What is None is as the pair has it."""
        return events.compare(request.session_hash, Asked(*values))

    kinds = {"request": gr.Request, **get_type_hints(Asked), "return": dict}
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    compare.__annotations__ = kinds
    compare.__signature__ = inspect.Signature(
        [request, *inspect.signature(Asked).parameters.values()], return_annotation=dict
    )
    return compare
