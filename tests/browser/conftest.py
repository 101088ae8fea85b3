"""A Chromium, and the page with a comparison that needs no model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from playground.bench.page import CHROMIUMS, FLAGS
from playground.ui import page as playground_page
from tests.ui import fakes


def unavailable(reason: str) -> None:
    """Skips where a browser is optional; in CI its absence is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")  # while it is open, its event loop runs, and no other can
def chromium() -> Iterator:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("the browser tests need playwright: pip install -r tests/requirements.txt")
    path = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if path is None:
        unavailable("the browser tests need a Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The page, decoding a fixed text without a model."""
    blocks = playground_page.build(fakes.Store(), fakes.PAIRS, fakes.PAIR, fakes.EXAMPLES, backend_for=fakes.Backend)
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())
    yield address
    blocks.close()


@pytest.fixture
def visit(chromium, url: str) -> Iterator[Callable]:
    """Opens the page as a user of their own; a script's error on it fails the test."""
    contexts, errors = [], []

    def open_page(width: int = 1280, theme: str = "light", touch: bool = False, height: int = 900):
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, accept_downloads=True, has_touch=touch)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        page.goto(f"{url}?__theme={theme}")
        page.locator("#model", has_text="is ready").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
