"""How the tests are shared out, and which begin."""

from __future__ import annotations

import atexit
import gc
import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the workers, and in the programs that tests start


def pytest_configure(config: pytest.Config) -> None:
    """The process that shares the tests out runs none, and need not load what they need."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        gc.disable()
        config.pluginmanager.import_plugin("tests.fixtures")


class OneBrowser(LoadFileScheduling):
    """One worker drives the browser, while the others take file after file: three pages at once on a small machine are
    slow enough to fail."""

    def _split_scope(self, nodeid: str) -> str:
        return "browser" if nodeid.startswith("tests/browser/") else super()._split_scope(nodeid)


# What takes the longest begins first, or one worker is alone with it at the end.
LONGEST = ("tests/browser/", "tests/test_wheel.py", "tests/experiments/test_shipped.py", "tests/decoding/", "tests/ui/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, it in enumerate(LONGEST) if item.nodeid.startswith(it)), len(LONGEST)))


def pytest_collection_finish() -> None:
    """What was imported stays: 500,000 objects that no later collection of garbage need go through, nor those of
    pytest at the end."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneBrowser:
    return OneBrowser(config, log)
