"""The page with the real starter model: two real lanes, every draft token accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.models.store import ModelStore
from playground.presets import load_pairs, load_suites
from playground.ui import page as playground_page
from tests.browser.test_page import ask, finish, panel, recorded, saved, shown

pytestmark = [pytest.mark.browser, pytest.mark.starter]


@pytest.fixture(scope="module")
def url(chromium) -> Iterator[str]:
    pairs, _ = load_pairs()
    suites, _ = load_suites()
    blocks = playground_page.build(ModelStore(), pairs, pairs["starter"], suites["first"].prompts)
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())
    yield address
    blocks.close()


def test_the_starter_decodes_on_the_page(visit):
    page = visit()
    ask(page, "Repeat three times: the quick brown fox jumps over the lazy dog.", 16)
    page.locator("#run").click()
    panel(page, 0).locator(".tok.plain").first.wait_for()
    finish(page)
    comparison = saved(page)
    assert [shown(page, index) for index in range(2)] == [recorded(lane) for lane in comparison.lanes]
    assert panel(page, 1).locator(".tok.accepted").count() > 0
    page.locator("#all-details > button").click()
    assert "SmolLM2-135M" in page.locator("#details").evaluate("details => details.textContent")
