"""Choosing a drafter in a real browser: the menu, the table of all of them on one prompt, and the page Best drafter."""

from __future__ import annotations

import json
import re

import pytest

from playground import export
from playground.drafting_methods import METHODS
from tests.browser.axe import violations
from tests.browser.conftest import pause
from tests.browser.test_page import advanced, ask, finish, open_trace, saved
from tests.browser.test_still import MOVED, WATCH

pytestmark = pytest.mark.browser
ROOM = """(input, names) => {
  const pen = document.createElement("canvas").getContext("2d");
  const { font, paddingLeft, paddingRight } = getComputedStyle(input);
  pen.font = font;
  const room = input.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  return [room, Math.max(...names.map(name => pen.measureText(name).width))];
}"""  # for a text in a box, and the width of the widest of these names


def test_all_drafters_end_in_a_sentence_bars_and_a_command_and_the_menu_follows(visit):
    page = visit(1440)
    ask(page, "Compare TCP and UDP.", 16)
    page.locator("#which > button").click()
    page.locator("#every").click()
    rows = page.locator("#which #drafters tbody tr")
    rows.nth(1).wait_for()
    page.evaluate(WATCH)
    pause(page, 600)  # after which no shift counts as the press's
    page.evaluate(MOVED)
    finish(page)
    said = page.locator("#drafters .found", has_text=re.compile("Best here|No clear winner|clearly beat"))
    said.wait_for()
    moved = page.evaluate(MOVED)
    assert sum(value for value, _ in moved) <= 0.02, moved
    assert rows.count() == 2 == page.locator("#drafters .speed .interval").count()
    assert page.locator("#drafters .winner").count() == said.inner_text().startswith("Best here")
    assert "max_new_tokens=16" in page.url
    for press, index in ((lambda button: button.press("Enter"), 1), (lambda button: button.click(), 0)):
        name = rows.nth(index).get_attribute("data-lane")
        press(rows.nth(index).get_by_role("button"))
        page.locator("#drafters tr[aria-current]", has_text=name).wait_for()
        assert rows.nth(index).get_attribute("aria-current") == "true"
        page.wait_for_function("name => document.querySelector('#drafter input').value.startsWith(name)", arg=name)
        assert "old" not in page.locator("#stage").get_attribute("class").split(), "the settings are those of the run"
    lookup = {"Prompt lookup": "ngram", "Assistant model": "draft"}[name]
    assert lookup in page.locator("#drafters .nearest code").inner_text()
    assert page.locator("#drafters .nearest .measure").is_hidden(), "it is the command of the lane that is shown"
    assert violations(page, "#which") == []
    comparison = saved(page)
    assert len(comparison.lanes) == 3
    open_trace(page, json.dumps(export.to_json(comparison)))
    page.locator("#banner", has_text="Opened from a file").wait_for()
    page.locator("#drafters tbody tr").nth(1).wait_for()
    assert not page.locator("#explained .again").is_visible()


def test_the_menu_says_what_a_drafter_is_and_its_help_has_a_picture_of_a_round(visit):
    page = visit(1440)
    menu = page.locator("#drafter input")
    menu.click()
    option = page.get_by_role("option", name="Assistant model: a smaller model of the same family")
    heading = option.evaluate("option => getComputedStyle(option, '::before').content")
    assert heading == '"A smaller model"'
    option.click()
    advanced(page)
    page.locator("#about > button").click()
    picture = page.locator("#about .pictured")
    picture.locator("figcaption", has_text="Assistant model: guessed").wait_for()
    assert picture.locator(".node.accepted").count() and picture.locator(".node.own").count() == 1
    assert violations(page, "#about") == []
    menu.click()
    page.get_by_role("option", name="Prompt lookup: ").click()
    picture.locator("figcaption", has_text="Prompt lookup: guessed").wait_for()


def test_on_a_phone_the_menu_of_drafters_is_not_cut(visit):
    page = visit(390)
    closed = page.locator("#drafter input")
    room, widest = closed.evaluate(ROOM, [method.label for method in METHODS.values()])
    assert widest < room, "a name is cut"
    closed.click()
    listed = page.locator("#drafter ul")
    listed.wait_for()
    left, right = listed.evaluate("list => [list.getBoundingClientRect().left, list.getBoundingClientRect().right]")
    assert 0 <= left < right <= 390


def test_best_drafter_asks_one_question_and_ends_in_a_verdict_a_chart_and_a_command(visit):
    page = visit(1440, room="best")
    page.get_by_role("radio", name="This one").check()
    prompt = page.get_by_label("Prompt", exact=True)
    prompt.fill("echo of mine")
    page.get_by_role("button", name="Advanced").click()
    limit = page.get_by_label("number input for Max new tokens")
    limit.fill("8")
    limit.press("Tab")
    page.locator("#run-experiment").click()
    page.locator("#experiment", has_text="Finished").wait_for()
    verdict = page.locator("#experiment .findings li").first.inner_text()
    assert verdict.startswith(("Best: ", "No clear winner: ", "No drafter clearly beat"))
    page.locator("#charts .main-svg").first.wait_for()
    assert page.locator("#experiment .deploy pre").count() == 1
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        pause(page, 300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page, "body" if width == 1440 else None) == []
    page.reload()
    page.wait_for_function("document.querySelector('#which-prompts input:checked')?.value === 'this'")
    assert prompt.input_value() == "echo of mine"


def test_the_addresses_of_earlier_rooms_lead_to_the_page_in_their_place(visit, url):
    leads = {"suite": "prompts=examples", "traffic": "prompts=logs", "recommend": "prompts=examples&depth=sure"}
    page = visit(room="recommend", query="&max_new_tokens=48")
    for old, query in leads.items():
        found = page.request.get(f"{url}{old}?max_new_tokens=48").url
        assert found == f"{url}best?{query}&max_new_tokens=48"
    assert page.url == f"{url}best?{leads['recommend']}&__theme=light&max_new_tokens=48"
    chosen = "([id, value]) => document.querySelector(`#${id} input:checked`)?.value === value"
    for wanted in (["which-prompts", "examples"], ["depth", "sure"]):
        page.wait_for_function(chosen, arg=wanted)
