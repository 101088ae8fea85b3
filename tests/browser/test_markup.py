"""What others wrote is text in a real browser, wherever the page or a saved report shows it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from playground import export
from playground.conversation import Message
from playground.experiments.history import COMPARE, History
from playground.trace import Comparison
from playground.ui import page as playground_page
from tests.browser.conftest import watch
from tests.browser.test_page import finish, open_trace
from tests.ui import fakes

pytestmark = pytest.mark.browser

MARKUP = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>${alert(4)}{{alert(5)}}"
)
CODES = {
    "drafter",
    "policy",
    "verification",
    "tools",
    "template",
    "json_schema",
    "regex",
    "grammar",
    "role",
    "rule",
    "decision",
    "reason",
    "finish",
    "created",
    "schedule",
}  # not free: they have to be known


def marked(data: Any, key: str = "") -> Any:
    """An exported trace with the markup in each text that is free."""
    match data:
        case dict():
            return {name: marked(value, name) for name, value in data.items()}
        case list():
            return [marked(value, key) for value in data]
        case str() if key not in CODES:
            return data + MARKUP
    return data


def hostile() -> Comparison:
    base = fakes.comparison(tokens=12, system="s", history=(Message("user", "q"), Message("assistant", "a")))
    lanes = tuple(
        dataclasses.replace(trace, environment=dataclasses.replace(trace.environment, runner="r", notes=("n",)))
        for trace in base.lanes
    )
    return export.from_json(marked(json.loads(json.dumps(export.to_json(Comparison(lanes))))))


def is_text(page: Any) -> None:
    """None of the markup became an element; what it asks for would be a dialog, which fails the test."""
    assert page.locator("img[src=x], svg[onload]").count() == 0
    assert page.evaluate("[...document.scripts].every(script => !script.text.startsWith('alert('))")


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Any:
    """The address of a page whose history has the hostile comparison."""
    history = History(tmp_path_factory.mktemp("history"))
    history.keep(COMPARE, MARKUP, export.to_json(hostile()))
    blocks = playground_page.build(
        fakes.Store(), fakes.PAIRS, fakes.PAIR, (), backend_for=fakes.Backend, history=history, problems=[MARKUP]
    )
    yield blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())[1]
    blocks.close()


def test_every_text_of_a_trace_is_text_wherever_the_page_shows_it(contexts, kept, tmp_path):
    context, errors, requests = contexts("markup"), [], []
    page = context.new_page()
    watch(page, errors)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{kept}?prompt={MARKUP}&pair={MARKUP}&__theme=light")
    page.locator("#model", has_text="is ready").wait_for()
    open_trace(page, json.dumps(export.to_json(hostile())))
    finish(page)
    for name in ("Why", "Cost", "Details", "Deploy"):
        page.locator("#sections").get_by_role("button", name=name, exact=True).click()
    page.locator("#deploy", has_text="alert(1)").wait_for()
    assert MARKUP in page.locator("#details").evaluate("details => details.textContent")
    token = page.locator(".tokens .tok").first
    token.hover()
    token.click()
    is_text(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Share").click()
        page.locator("#share-menu [name=file]").click()
    report = tmp_path / "report.html"
    report.write_bytes(Path(download.value.path()).read_bytes())

    page.goto(f"{kept}history")
    title = page.get_by_role("link", name="alert(1)").first
    title.wait_for()
    assert MARKUP in title.evaluate("link => link.textContent")
    is_text(page)
    with page.expect_download() as download:
        page.get_by_role("checkbox").last.check()
        page.locator("#history-html:enabled").click()
    saved = tmp_path / "saved.html"
    saved.write_bytes(Path(download.value.path()).read_bytes())
    page.goto(f"{kept}history")
    title.click()
    page.get_by_text("Opened from the history").wait_for()
    is_text(page)
    for path in (report, saved):
        page.goto(path.as_uri())
        page.get_by_text("alert(1)").first.wait_for(state="attached")
        is_text(page)
    page.close()
    assert errors == [] and not [it for it in requests if it.rstrip("/").endswith("/x")]
