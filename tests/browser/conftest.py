"""A Chromium, and the page with a comparison that needs no model."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.page import CHROMIUMS, FLAGS
from playground import export
from playground.experiments.history import History
from playground.hosting.access import FOR_VISITORS, Access
from playground.trace import Comparison
from playground.ui import page as playground_page
from tests.examples import plain_round, trace
from tests.ui import fakes


def unavailable(reason: str) -> None:
    """Skips where a browser is optional; in CI its absence is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def pause(page: Any, ms: int) -> None:
    """Waits by the page's own timers, one after the other: what the page has to do by then is done, also where the
    machine stood still meanwhile."""
    later = "async steps => { for (; steps > 0; steps--) await new Promise(next => setTimeout(next, 100)); }"
    page.evaluate(later, ms / 100)


def slowed(page: Any) -> Any:
    """The page, to which the server answers so many milliseconds later as PLAYGROUND_TEST_LATENCY says, as on a busy
    machine: a test that reads what has not arrived yet fails at each run instead of at one of fifty."""
    if latency := int(os.environ.get("PLAYGROUND_TEST_LATENCY", 0)):
        limits = {"offline": False, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1}
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", limits)
    return page


@pytest.fixture(scope="package")  # while it is open, its event loop runs, and no other can
def chromium() -> Iterator:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("the browser tests need playwright: pip install -r tests/requirements.txt")
    path = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if path is None:
        unavailable("the browser tests need a Chromium: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        # No page here lives so long that optimising its scripts saves more time than it takes: a third of its opening.
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, "--js-flags=--no-opt"])
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
def public() -> Iterator[tuple[str, History]]:
    """The page as strangers reach it, and what it keeps."""
    access = Access(public=True, models=(), limits=FOR_VISITORS)
    history = History(None, access.limits.history_s, access.limits.history_each)
    blocks = playground_page.build(
        fakes.Store(),
        fakes.PAIRS,
        fakes.PAIR,
        fakes.EXAMPLES,
        backend_for=fakes.Backend,
        access=access,
        history=history,
    )
    look, bounds = playground_page.look(access), playground_page.bounds(access)
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **look, **bounds)
    yield address, history
    blocks.close()


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Each lane stands still after five rounds until this is set."""
    fakes.GATE.clear()
    yield fakes.GATE
    fakes.GATE.set()


@pytest.fixture(scope="package")
def contexts(chromium) -> Iterator[Callable]:
    """Browser contexts by a name and whether they have touch, which tests share."""
    opened: dict[tuple[object, bool], Any] = {}

    def context(name: object, touch: bool = False) -> Any:
        if (name, touch) not in opened:
            opened[name, touch] = chromium.new_context(accept_downloads=True, has_touch=touch)
            opened[name, touch].set_default_timeout(120_000)  # where a machine is shared, a page opens slowly
        return opened[name, touch]

    yield context
    for each in opened.values():
        each.close()


@pytest.fixture
def visit(contexts, url: str) -> Iterator[Callable]:
    """Opens the page as a user of their own; a script's error on it fails the test. Tests share the tabs: in one that
    had the page before, it opens in half the time. Each context has one, since a page behind another does not draw.
    Without `motion` nothing moves by itself, as where less motion is asked for: animations take most of a core."""
    pages, errors, listeners = [], [], []

    def open_page(
        width: int = 1280,
        theme: str = "light",
        touch: bool = False,
        height: int = 900,
        query: str = "",
        motion: bool = False,
        room: str = "",
    ):
        context = contexts(len(pages), touch)
        page = context.pages[0] if context.pages else slowed(context.new_page())
        pages.append(page)
        listeners.append(watch(page, errors))
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(reduced_motion="no-preference" if motion else "reduce")
        page.mouse.move(0, 0)
        page.goto(f"{url}{room}?__theme={theme}{query}")
        if room:
            page.locator("html.formed").wait_for()
            pause(page, 800)  # what is typed or pressed while a room opens is lost
        else:
            state: Any = "attached" if "&embed" in query else "visible"  # in a frame it is hidden
            page.locator("#model", has_text="is ready").wait_for(state=state)
        return page

    yield open_page
    for page, of_page in zip(pages, listeners, strict=True):
        if not page.is_closed():
            page.evaluate("localStorage.clear(); sessionStorage.clear()")
            page.goto("about:blank")
            ignore(page, of_page)
    assert errors == []


@pytest.fixture(scope="package")
def pages(contexts, url: str) -> Callable:
    """Pages by a name, each in a context of its own, which tests share."""

    @functools.cache
    def opened(name: str) -> Any:
        page = slowed(contexts(name).new_page())
        page.emulate_media(reduced_motion="reduce")
        page.goto(f"{url}?__theme=light")
        page.locator("#model", has_text="is ready").wait_for()
        return page

    return opened


_others = itertools.count()


def _open_another(page: Any) -> None:
    """Shows a trace that no test has: of one that is shown already, the page would draw nothing anew."""
    lanes = (trace([plain_round(1)]), trace([plain_round(1)], name=f"Other {next(_others)}"))
    text = json.dumps(export.to_json(Comparison(lanes)))
    file = {"name": "trace.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function("name => document.body.innerText.includes(name)", arg=lanes[1].lane.name)
    page.locator("#status", has_text="Ran on").wait_for()


@pytest.fixture
def reader(pages) -> Iterator[Any]:
    """A page for tests that only open traces and look at them. They share it: opening the page takes longer than what
    they do with it."""
    yield from _shared(pages("reader"))


@pytest.fixture
def user(pages) -> Iterator[Any]:
    """The same for tests that press Run, and choose neither models nor a drafter."""
    yield from _shared(pages("user"))


def _shared(page: Any) -> Iterator[Any]:
    errors: list[str] = []
    page.set_viewport_size({"width": 1280, "height": 900})
    page.mouse.move(0, 0)
    _open_another(page)
    page.evaluate("document.querySelectorAll('#status > span').forEach(said => said.textContent = '')")
    listeners = watch(page, errors)
    yield page
    ignore(page, listeners)
    page.keyboard.press("Escape")
    page.get_by_label("Show guesses").uncheck()
    assert errors == []


def watch(page, errors: list[str]) -> list[tuple[str, Callable]]:
    """Collects the errors of the page's scripts, what its policies forbid, and its dialogs. Returns the listeners."""
    listeners = [
        ("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None),
        ("pageerror", lambda error: errors.append(str(error))),
        ("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}")),
    ]
    for event, listener in listeners:
        page.on(event, listener)
    return listeners


def ignore(page, listeners: list[tuple[str, Callable]]) -> None:
    for event, listener in listeners:
        page.remove_listener(event, listener)
