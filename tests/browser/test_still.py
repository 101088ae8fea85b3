"""Nothing moves by itself: neither while the page loads nor when a run ends. What is pressed lights what it counts, and
each caret opens its own round."""

from __future__ import annotations

import json

import pytest

from playground import export
from tests.browser.test_page import ask, finish, open_trace, opened, panel, start
from tests.ui import fakes

pytestmark = pytest.mark.browser

WATCH = """
window.shifts = [];
new PerformanceObserver(list => {
  for (const entry of list.getEntries())
    if (!entry.hadRecentInput)
      window.shifts.push([entry.value, entry.sources.map(({ node }) => node?.className ?? "")]);
}).observe({ type: "layout-shift", buffered: true });
"""
MOVED = "() => window.shifts.splice(0).filter(([value]) => value >= 0.0005)"


WIDTHS = [390, 1440, *(pytest.param(width, marks=pytest.mark.slow) for width in (600, 768, 1024))]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_moves_on_load_or_when_a_run_ends(visit, width):
    page = visit(width)
    page.evaluate(WATCH)
    page.wait_for_timeout(800)
    moved = page.evaluate(MOVED)
    assert sum(value for value, _ in moved) <= 0.1, moved
    ask(page, "echo a noisy machine, whose badges say so", 60)
    page.evaluate("scrollTo(0, 0)")
    start(page)
    page.wait_for_timeout(600)  # after which no shift counts as the press's
    page.evaluate(MOVED)
    finish(page)
    page.wait_for_timeout(800)
    assert page.evaluate(MOVED) == []
    assert "noisy" in page.locator("#verdict .badges").inner_text()
    height = "document.getElementById('verdict').offsetHeight"
    before = page.evaluate(height)
    page.get_by_label("number input for Lookahead").fill("3")
    page.locator("#stage.old").wait_for()
    assert page.evaluate(height) == before, "what says that the result is old has a place"


def test_a_figure_and_a_step_light_what_they_count(reader):
    page = reader
    opened(page, *fakes.comparison(tokens=60).lanes)
    page.locator("#verdict .term[data-lights=verify]").click()
    opacity = "path => getComputedStyle(path).opacity"
    mine = page.locator(".band[data-lane='1']")
    assert mine.locator("path.verify").first.evaluate(opacity) == "1"
    assert mine.locator("path.gain").first.evaluate(opacity) == "0.2"
    page.locator("#verdict .leads", has_text="Why?").click()
    step = page.locator("#why .steps button[data-lights=gain]")
    step.click()
    assert step.get_attribute("aria-pressed") == "true"
    assert page.locator("#verdict .term[data-lights=gain]").get_attribute("aria-pressed") == "true"
    assert mine.locator("path.gain").first.evaluate(opacity) == "1"
    step.click()
    assert page.locator(".stage").get_attribute("data-lit") == ""


def test_on_a_phone_each_caret_opens_its_own_round(visit):
    page = visit(390, touch=True, height=844)
    open_trace(page, json.dumps(export.to_json(fakes.comparison(tokens=120))))
    finish(page)
    carets = panel(page, 1).locator(".caret")
    assert carets.count() >= 14
    for index in range(14):
        caret = carets.nth(index)
        caret.scroll_into_view_if_needed()
        box = caret.bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        number = caret.locator("xpath=..").get_attribute("data-round")
        page.get_by_role("dialog", name=f"Round {number}:").wait_for(timeout=10_000)
        page.keyboard.press("Escape")
