"""The page with real models: two real lanes, every draft token accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.models.store import ModelStore
from playground.presets import Pair, custom_pair, load_pairs
from playground.ui import page as playground_page
from tests.browser.test_page import ask, finish, panel, recorded, saved, shown

pytestmark = pytest.mark.browser
PROMPT = "Repeat three times: the quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def pair(request, written_once) -> Pair:
    """A target that drafts for itself, or the starter."""
    folder = str(written_once)
    return load_pairs()[0]["starter"] if request.param == "starter" else custom_pair(folder, folder, "assistant")


@pytest.fixture(scope="module")
def url(chromium, pair) -> Iterator[str]:
    blocks = playground_page.build(ModelStore(), {pair.name: pair}, pair, ())
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())
    yield address
    blocks.close()


@pytest.mark.parametrize(
    "pair", ["tiny", pytest.param("starter", marks=[pytest.mark.starter, pytest.mark.slow])], indirect=True
)
def test_real_lanes_decode_on_the_page(visit, pair):
    page = visit()
    ask(page, PROMPT, 16)
    page.locator("#run").click()
    panel(page, 0).locator(".tok.plain").first.wait_for()
    finish(page)
    comparison = saved(page)
    assert [shown(page, index) for index in range(2)] == [recorded(lane) for lane in comparison.lanes]
    assert panel(page, 1).locator(".tok.accepted").count() > 0
    page.locator("#all-details > button").click()
    name = "SmolLM2-135M" if pair.name == "starter" else pair.target
    assert name in page.locator("#details").evaluate("details => details.textContent")
