"""The first view: what a stranger sees of the page before the first press."""

from __future__ import annotations

import dataclasses

import pytest

from playground.drafting_methods import METHODS
from playground.trace import Comparison
from tests.browser.axe import violations
from tests.browser.test_page import ask, finish, opened
from tests.ui import fakes

pytestmark = pytest.mark.browser

# Of what stands above the text: its controls besides the links between the rooms, and its words.
ABOVE = r"""() => {
  const end = document.querySelector(".tokens").getBoundingClientRect().top;
  const seen = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const above = (node) => seen(node) && node.getBoundingClientRect().top < end;
  const controls = [...document.querySelectorAll("button, input, select, textarea, summary")].filter(above);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const words = [];
  while (texts.nextNode()) {
    const { parentElement: of, data } = texts.currentNode;
    if (!of.closest("script, style, option") && above(of)) words.push(...data.split(/\s+/).filter(Boolean));
  }
  return { end, controls: controls.map((it) => it.ariaLabel || it.textContent || it.id), words };
}"""
SMALL = """() => [...document.querySelectorAll("main button, main input, main select, main a, main label")]
  .filter((it) => it.checkVisibility({ visibilityProperty: true }) && !it.closest("p"))
  .map((it) => [it, (it.closest("label, .wrap") ?? it).getBoundingClientRect()])
  .filter(([, { width, height }]) => width > 0 && (width < 24 || height < 24))
  .map(([it, { width, height }]) => [it.outerHTML.slice(0, 90), width, height])"""


def test_the_first_view_is_short_and_shows_both_texts(visit):
    page = visit(1440, height=900, motion=True)
    found = page.evaluate(ABOVE)
    assert found["end"] <= 420
    assert len(found["controls"]) <= 14, found["controls"]
    assert len(found["words"]) <= 120, found["words"]
    tops = [it.bounding_box()["y"] for it in page.locator(".tokens").all()]
    assert tops[0] == tops[1]
    share, verdict = page.get_by_role("button", name="Share").bounding_box(), page.locator("#verdict").bounding_box()
    assert verdict["y"] <= share["y"] <= verdict["y"] + verdict["height"]
    page.locator(".replay .caption", has_text="Slow, round ").wait_for()  # it plays by itself, in a loop
    page.mouse.wheel(0, 1)
    page.locator(".replay .play", has_text="Play").wait_for()
    for text in page.locator(".tokens").all():
        assert text.evaluate("panel => panel.scrollHeight <= panel.clientHeight"), "the whole text"
    page.get_by_role("button", name="Share").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.stage') !== null"), "the verdict's own is one stop away"


HEIGHT = "document.documentElement.scrollHeight"


def of_many(tokens: int, drafters: int = 11) -> Comparison:
    """A run of so many drafters."""
    standard, ours = fakes.comparison(tokens).lanes
    lanes = [dataclasses.replace(ours.lane, name=it.label) for it in [*METHODS.values()][:drafters]]
    runs = (dataclasses.replace(ours, lane=lane, rounds=tuple(fakes.rounds(lane, tokens))) for lane in lanes)
    return Comparison((standard, *runs))


def test_what_is_opened_on_a_phone_is_no_longer_than_what_ran_there(visit):
    page = visit(390, height=844)  # one of its own, on which nothing is unfolded
    opened(page, *fakes.comparison(128).lanes)
    page.locator("#banner", has_text="Opened from a file").wait_for()
    assert page.evaluate(HEIGHT) <= 2000
    opened(page, *of_many(128).lanes)
    page.locator("#which > button").click()
    page.locator("#all-drafters tbody tr").nth(10).wait_for()
    assert page.evaluate(HEIGHT) <= 2000
    of_one = page.locator(".stage.many :is(.next, .gaps, #explained > .sentences, #explained > .terms)")
    assert of_one.count() == 4 and not any(it.is_visible() for it in of_one.all()), "many lanes are compared, not one"


def test_a_phone_has_room_for_the_page_and_for_fingers(visit):
    page = visit(390, height=844, touch=True)
    page.mouse.wheel(0, 1)
    assert page.locator("#header p").is_visible()
    assert page.evaluate(HEIGHT) <= 2000
    assert page.evaluate(SMALL) == []
    assert violations(page, None) == []
    ask(page, "Compare TCP and UDP.", 128)
    page.locator("#more > button").click()
    page.locator("#run").click()
    finish(page)
    page.locator("#run:enabled").wait_for()
    page.locator("#runs label").wait_for(state="attached")
    assert page.evaluate(SMALL) == []
    assert page.evaluate(HEIGHT) <= 2000
    assert page.locator(".band").count() == 2, "both bars on one clock"
    page.locator("#which > button").click()
    page.locator("#every").click()
    finish(page)
    page.locator("#run:enabled").wait_for()
    page.locator("#all-drafters tr[aria-current]").wait_for()
    assert page.evaluate(SMALL) == []
    assert page.evaluate(HEIGHT) <= 2000

    token = page.locator(".lane.chosen .tok.accepted").nth(30)
    token.tap()
    page.get_by_label("The round", exact=True).wait_for()
    mine, tip, panel, player = (
        it.bounding_box()
        for it in (token, page.locator("#token-tip"), page.locator(".round-panel"), page.locator(".replay"))
    )
    assert 0 <= player["y"] <= 844 - player["height"], "the player stays in sight"
    below, above = tip["y"] - mine["y"] - mine["height"], mine["y"] - tip["y"] - tip["height"]
    assert 0 <= max(below, above) <= 40, "what a token is stands beside it"
    assert tip["y"] + tip["height"] <= panel["y"], "and nothing over its round"
