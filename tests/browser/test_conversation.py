"""A conversation on the page: a turn is added under a run, and the gutter says what the text is part of."""

from __future__ import annotations

import dataclasses

import pytest

from playground.trace import Trace
from tests.browser.test_page import TOPS, ask, finish, opened, panel, saved, start
from tests.ui import fakes

pytestmark = pytest.mark.browser


def test_a_turn_goes_on_from_the_run_outlives_one_that_fails_and_a_new_run_begins_anew(user):
    page = user
    ask(page, "Compare TCP and UDP.", 24)
    start(page)
    finish(page)
    box = page.get_by_label("Next message")
    for message in ("And QUIC?", "Which is older? <b>no</b>"):
        box.fill(message)
        page.get_by_role("button", name="Add a turn").click()
        page.locator(".conversation li.user", has_text=message).wait_for()
        finish(page)
        assert box.input_value() == ""
    assert page.locator(".conversation li").count() == 5
    assert page.locator(".figures dt", has_text="From cache").count() == 2
    request = saved(page, lambda it: len(it.standard.request.turns) == 5).standard.request
    assert [turn.content for turn in request.turns if turn.role == "user"] == [
        "Compare TCP and UDP.", "And QUIC?", "Which is older? <b>no</b>",
    ]  # fmt: skip

    before = panel(page, 1).inner_text()
    box.fill("fail")
    page.get_by_role("button", name="Add a turn").click()
    page.locator("#status.error").wait_for()
    assert box.input_value() == "fail" and panel(page, 1).inner_text() == before

    start(page)
    page.locator(".conversation").wait_for(state="hidden")
    finish(page)
    assert len(saved(page).standard.request.turns) == 1


def test_the_gutter_moves_no_line_and_says_what_a_token_is_part_of(reader):
    lanes = fakes.comparison(40).lanes
    opened(reader, *lanes)
    places = [panel(reader, i).locator(".tok").evaluate_all(TOPS) for i in (0, 1)]
    opened(reader, *map(thinking, lanes))
    reader.locator(".tok[data-segment]").first.wait_for()
    assert [panel(reader, i).locator(".tok").evaluate_all(TOPS) for i in (0, 1)] == places
    segments = panel(reader, 1).locator(".tok").evaluate_all("all => all.map(it => it.dataset.segment)")
    assert segments == ["thinking"] * 13 + ["answer"] * 27
    reader.locator(".guessing-switch").hover()
    assert reader.locator(".legend li", has_text="thinking").is_visible()
    token = panel(reader, 1).locator(".tok").nth(3)
    token.scroll_into_view_if_needed()
    # Playwright would point at the bar, which is the token's too.
    box = token.evaluate("it => it.getBoundingClientRect().toJSON()")
    reader.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    reader.locator("#token-tip", has_text="part of").wait_for()


def thinking(lane: Trace) -> Trace:
    """The lane as if its prompt had opened the thinking, which its 13th token ends."""
    end = lane.token_ids[12]
    assert end is not None and end not in lane.token_ids[:12]
    return dataclasses.replace(lane, prompt_ids=(99_999,), markers=((99_999, "<think>"), (end, "</think>")))
