from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from playground.hosting.access import Access
from playground.ui import page
from tests.ui import fakes


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., str]]:
    """The address of a page whose runs are those of a given backend; `more` are arguments of its launch."""
    monkeypatch.setenv("GRADIO_HEARTBEAT_INTERVAL", "0.1")
    served = []

    def start(backend_for: Callable, access: Access = Access(), **more: Any) -> str:  # noqa: B008  # frozen
        blocks = page.build(fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, (), backend_for=backend_for, access=access)
        served.append(blocks)
        told = page.look(access) | page.bounds(access) | more
        return blocks.launch(prevent_thread_lock=True, quiet=True, **told)[1].rstrip("/")

    yield start
    for blocks in served:
        blocks.close()
