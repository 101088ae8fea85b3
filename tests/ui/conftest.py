from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
import pytest

from playground.hosting.access import Access
from playground.ui import page
from tests.ui import fakes

PAIRS = {"fake": fakes.PAIR}


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """The address of a page whose runs are those of a given backend; `more` are arguments of its launch. The tests of a
    file that ask for the same share a page."""
    served: dict[tuple, tuple[gr.Blocks, str]] = {}

    def start(backend_for: Callable, access: Access = Access(), **more: Any) -> str:  # noqa: B008  # frozen
        key = (backend_for, access, *more.items())
        if key not in served:
            blocks = page.build(fakes.Store(), PAIRS, fakes.PAIR, (), backend_for=backend_for, access=access)
            told = page.look(access) | page.bounds(access) | more
            served[key] = blocks, blocks.launch(prevent_thread_lock=True, quiet=True, **told)[1].rstrip("/")
        return served[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_HEARTBEAT_INTERVAL", "0.1")
        yield start
    for blocks, _ in served.values():
        blocks.close()
