"""Nothing moves by itself: neither while the page loads nor when a run ends. What is pressed lights what it counts."""

from __future__ import annotations

import pytest

from tests.browser.conftest import pause
from tests.browser.test_page import advanced, ask, finish, opened, start
from tests.ui import fakes

pytestmark = pytest.mark.browser

WATCH = """
if (!window.shifts) new PerformanceObserver(list => {
  for (const entry of list.getEntries())
    if (!entry.hadRecentInput)
      window.shifts.push([entry.value, entry.sources.map(({ node }) => node?.className ?? "")]);
}).observe({ type: "layout-shift", buffered: true });
window.shifts ??= [];
"""
MOVED = "() => window.shifts.splice(0).filter(([value]) => value >= 0.0005)"


# What moves on a wide page is seen below as it opens, and in test_drafters.py as a run ends.
WIDTHS = [390, *(pytest.param(width, marks=pytest.mark.slow) for width in (600, 768, 1024, 1440))]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_moves_on_load_or_when_a_run_ends(visit, width):
    page = visit(width, motion=True)
    page.evaluate(WATCH)
    pause(page, 800)
    moved = page.evaluate(MOVED)
    assert sum(value for value, _ in moved) <= 0.02, moved
    ask(page, "echo a noisy machine", 60)
    page.locator("#more > button").click()
    pause(page, 600)
    page.evaluate("scrollTo(0, 0)")
    start(page)
    pause(page, 600)  # after which no shift counts as the press's
    page.evaluate(MOVED)
    finish(page)
    pause(page, 800)
    moved = page.evaluate(MOVED)
    assert sum(value for value, _ in moved) <= 0.02, moved
    height = "document.getElementById('verdict').offsetHeight"
    before = page.evaluate(height)
    advanced(page)
    page.get_by_label("number input for Lookahead").fill("3")
    page.locator("#stage.old").wait_for()
    assert page.evaluate(height) <= before, "what says that the result is old has a place"


def test_no_room_moves_while_it_opens_and_each_has_a_title(visit, url):
    page = visit(1440, motion=True)
    page.evaluate(WATCH)
    page.add_init_script(WATCH)
    titles = set()
    for room in ("", "best", "servers", "history", "docs"):
        if room:
            page.goto(f"{url}{room}")
        page.locator("html.formed").wait_for()
        pause(page, 800)
        moved = page.evaluate(MOVED)
        assert sum(value for value, _ in moved) <= 0.02, (room, moved)
        titles.add(page.title())
    assert len(titles) == 5


def test_a_figure_and_a_step_light_what_they_count(reader):
    page = reader
    opened(page, *fakes.comparison(tokens=60).lanes)
    page.locator("#explained .term[data-lights=verify]").click()
    opacity = "path => getComputedStyle(path).opacity"
    mine = page.locator(".band[data-lane='1']")
    assert mine.locator("path.verify").first.evaluate(opacity) == "1"
    assert mine.locator("path.gain").first.evaluate(opacity) == "0.2"
    page.locator("#why > button").click()
    step = page.locator("#why .steps button[data-lights=gain]")
    step.click()
    assert step.get_attribute("aria-pressed") == "true"
    assert page.locator("#explained .term[data-lights=gain]").get_attribute("aria-pressed") == "true"
    assert mine.locator("path.gain").first.evaluate(opacity) == "1"
    step.click()
    assert page.locator(".stage").get_attribute("data-lit") == ""
