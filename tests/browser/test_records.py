"""The room of records in a real browser: it filters, sorts, and opens what is behind a row."""

from __future__ import annotations

import pytest

from tests.browser.axe import violations

pytestmark = pytest.mark.browser


def test_records_are_filtered_sorted_and_opened(visit):
    page = visit(390, theme="dark", room="records")
    rows = page.locator("#records .record:visible")
    rows.first.wait_for()
    assert page.evaluate("document.documentElement.scrollHeight") <= 2000, "more rows come when they are asked for"
    page.get_by_role("button", name="Show all").click()
    every = rows.count()
    speeds = [float(row.get_attribute("data-speedup")) for row in rows.all()]
    assert speeds == sorted(speeds, reverse=True)
    page.get_by_label("Source").select_option("measured")
    assert 0 < rows.count() < every and page.locator("#records .published:visible").count() == 0
    page.get_by_label("Sort by").select_option("drafter")
    drafters = [row.get_attribute("data-drafter") for row in rows.all()]
    assert drafters == sorted(drafters, key=str.casefold)
    rows.first.click()
    assert rows.first.get_by_text("Spec-Bench").first.is_visible() and rows.first.get_by_text("seed 0").is_visible()
    rows.first.get_by_role("link", name="Open the run").click()
    page.get_by_role("link", name="All records").wait_for()
    assert page.locator("#records .findings li").count() and page.locator("#records table").count()
    page.go_back()
    rows.first.wait_for()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
