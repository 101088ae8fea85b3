"""The token view of a saved trace in another Gradio app, without models and without this page.

It shows both lanes, the timeline and the replay. docs/embed.md shows how to use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from playground import export
from playground.ui import panels
from playground.views import scripts, stage


def replay(trace: str | bytes | Path, lane: str = "") -> gr.HTML:
    """Returns the view of a trace, for a `gr.Blocks` that is launched with `look()`. A page can hold one view.

    Args:
        trace: a file that the page or `compare --json` saved, or its text.
        lane: the name of the lane to compare with the baseline; "" for the fastest.

    Raises:
        PlaygroundError: the text is no trace, or of a newer version.
        OSError: the file cannot be read.
    """
    return panels.stage(value(trace, lane))


def value(trace: str | bytes | Path, lane: str = "") -> dict[str, Any]:
    """Returns a value with which a handler shows another trace in the view. Arguments and errors are those of
    `replay`."""
    comparison = export.load(trace.read_bytes() if isinstance(trace, Path) else trace)
    return stage.packed(stage.replaying(comparison, lane).value())


def look() -> dict[str, Any]:
    """Returns arguments for `launch`: the view's style sheets."""
    return {"css_paths": scripts.styles()}
