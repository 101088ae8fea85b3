"""The history in a real browser: what can be done with the entries that are chosen."""

from __future__ import annotations

from typing import Any

import pytest

from playground import export
from playground.experiments.history import COMPARE, History
from playground.ui import page as playground_page
from tests.browser.conftest import pause, slowed, watch
from tests.ui import fakes

pytestmark = pytest.mark.browser


@pytest.fixture
def page(contexts, tmp_path) -> Any:
    """The history of a page on which three comparisons ran."""
    history = History(tmp_path)
    for tokens in (12, 24, 36):
        history.keep(COMPARE, f"{tokens} tokens", export.to_json(fakes.comparison(tokens)))
    blocks = playground_page.build(
        fakes.Store(), fakes.PAIRS, fakes.PAIR, (), backend_for=fakes.Backend, history=history
    )
    address = blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())[1]
    errors: list[str] = []
    opened = slowed(contexts("history").new_page())
    watch(opened, errors)
    opened.goto(f"{address}history")
    opened.get_by_role("checkbox", name="36 tokens").wait_for()
    yield opened
    opened.close()
    blocks.close()
    assert errors == []


def enabled(page: Any) -> list[str]:
    """The buttons for what is chosen that can be pressed."""
    return [it.inner_text() for it in page.locator("#chosen button:enabled:visible").all()]


def test_one_entry_is_saved_two_are_compared_and_all_that_are_chosen_are_deleted(page):
    compare, save = page.locator("#compare-entries"), page.locator("#history-json")
    assert enabled(page) == []
    page.get_by_role("checkbox", name="24 tokens").check()
    page.locator("#history-json:enabled").wait_for()
    assert compare.is_disabled()
    page.get_by_role("checkbox", name="12 tokens").check()
    page.locator("#compare-entries:enabled").wait_for()
    assert save.is_disabled()
    pause(page, 4000)  # the list is read again every three seconds
    assert page.locator("#history input:checked").count() == 2
    compare.click()
    shown = page.locator("#side-by-side section")
    shown.wait_for()
    first, second = shown.locator("li").all()[:2]
    assert "12 tokens" in first.inner_text() and "24 tokens" in second.inner_text(), "the older first"
    page.get_by_role("checkbox", name="36 tokens").check()
    page.locator("#compare-entries:disabled").wait_for()
    assert enabled(page) == ["Delete"]
    page.locator("#delete-entries").click()
    page.locator("#side-by-side", has_text="3 runs deleted.").wait_for()
    page.locator("#compare-entries:disabled").wait_for(state="attached")  # nothing is left that could be chosen
    page.locator("#undo-delete").click()
    page.get_by_role("checkbox", name="24 tokens").wait_for()
