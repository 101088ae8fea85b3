from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from playground.hosting.access import Access
from playground.ui import page
from tests.ui import fakes


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., str]]:
    """The address of a page whose runs are those of a given backend."""
    monkeypatch.setenv("GRADIO_HEARTBEAT_INTERVAL", "0.1")
    served = []

    def start(backend_for: Callable, access: Access = Access()) -> str:  # noqa: B008  # frozen
        blocks = page.build(fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, (), backend_for=backend_for, access=access)
        served.append(blocks)
        return blocks.launch(prevent_thread_lock=True, quiet=True, **page.look(access), **page.bounds(access))[
            1
        ].rstrip("/")

    yield start
    for blocks in served:
        blocks.close()
