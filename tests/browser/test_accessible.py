"""The page for everybody: axe finds nothing in any state, and all of it works by keyboard and by touch."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from playground import export
from playground.trace import Comparison, Memory
from tests.browser.axe import violations
from tests.browser.conftest import pause
from tests.browser.test_page import advanced, ask, finish, open_trace, opened, panel, start
from tests.examples import plain_round, trace, tree_round
from tests.ui import fakes

pytestmark = pytest.mark.browser
SIZES = [(1440, 900), (390, 844)]


def tree() -> Comparison:
    lanes = [trace([plain_round(6), plain_round(9, start_s=1)]), trace([tree_round()], drafter="tree")]
    held = Memory(3_000_000, 2_000_000, 0, 0)
    return Comparison(tuple(dataclasses.replace(lane, memory=held) for lane in lanes))


WIDE, PHONE = SIZES
LATER = ((PHONE, "dark"), (WIDE, "dark"), (PHONE, "light"))
STATES = [(WIDE, "light"), *(pytest.param(*state, marks=pytest.mark.slow) for state in LATER)]


@pytest.mark.parametrize(("size", "theme"), STATES)
def test_axe_finds_nothing_in_any_state(visit, size, theme):
    page = visit(size[0], theme=theme, height=size[1], touch=size[0] < 500)
    advanced(page)
    page.get_by_role("button", name="How this drafter works").click()
    assert violations(page) == [], "the recorded run, everything unfolded"
    ask(page, "fail please")
    page.locator("#run").click()
    page.locator("#status[role=alert]").wait_for()
    page.locator("#run:not([disabled])").wait_for()
    assert violations(page, "#status") == [], "an error"
    ask(page, "Compare TCP and UDP.", 60)
    start(page)
    panel(page, 0).locator(".tok").first.wait_for()
    assert violations(page, None) == [], "a run"
    finish(page)
    page.locator("#run:not([disabled])").wait_for()
    page.get_by_label("Show guesses").check()
    page.locator("#why > button").click()
    page.locator("#why .main-svg").first.wait_for()
    assert violations(page) == [], "a finished run"
    opened(page, *tree().lanes)
    page.locator("#banner", has_text="Opened from a file").wait_for()
    if page.get_by_role("tab").first.is_visible():
        page.get_by_role("tab").nth(1).click()
    panel(page, 1).locator(".tok").first.click()
    page.get_by_label("The round", exact=True).wait_for()
    assert violations(page, ".stage") == [], "a tree"


# Texts whose contrast to their ground is below 4.5:1, the contrast of the accepted tokens' underline, and the ground.
CONTRAST = r"""() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => value * a + below[i] * (1 - a));
  const linear = (value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (node) =>
    node ? over(rgba(getComputedStyle(node).backgroundColor), ground(node.parentElement)) : [255, 255, 255];
  const contrast = (colour, node) => {
    const below = ground(node);
    const [high, low] = [light(over(rgba(colour), below)), light(below)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const pale = [];
  while (texts.nextNode()) {
    const { parentElement: of, data } = texts.currentNode;
    if (data.trim() && of.checkVisibility() && contrast(getComputedStyle(of).color, of) < 4.5) pale.push(data);
  }
  const token = document.querySelector(".tokens .tok.accepted");
  const style = token && getComputedStyle(token);
  const line = style?.textDecorationLine === "underline" ? contrast(style.textDecorationColor, token.parentElement) : 0;
  return { pale, line, ground: ground(document.querySelector("main")) };
}"""


def test_the_documents_and_what_was_accepted_can_be_read_in_both_themes(visit, url):
    page = visit()
    page.mouse.wheel(0, 1)
    page.wait_for_function("!document.querySelector('.round.future')")
    in_both_themes(page, lambda found: found["line"] >= 3)  # accepted is seen without colour
    for name in ("terminal", "add-a-drafter"):
        page.goto(f"{url}docs?page={name}&__theme=light")
        page.locator("#document code .token").first.wait_for()
        in_both_themes(page, lambda found: found["pale"] == [])


def in_both_themes(page, legible) -> None:
    """`page` was opened in the light theme."""
    found = [page.evaluate(CONTRAST)]
    page.evaluate("document.body.classList.add('dark')")
    pause(page, 500)  # colours fade
    found.append(page.evaluate(CONTRAST))
    assert all(map(legible, found)), found
    light, dark = (it["ground"] for it in found)
    assert min(light) > 200 and max(dark) < 60


def test_prompt_run_and_the_lanes_first_lines_are_seen_at_once(reader):
    bottoms = "all => all.map(it => it.getBoundingClientRect().bottom)"
    page = reader
    opened(page, *fakes.comparison().lanes)
    page.evaluate("scrollTo(0, 0)")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for seen in (page.locator("#prompt textarea"), page.locator("#run")):
            box = seen.bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= height
        assert min(page.locator(".tokens:visible .tok").evaluate_all(bottoms)) <= height


def test_nothing_scrolls_sideways(reader):
    page = reader
    page.set_viewport_size({"width": 360, "height": 900})
    advanced(page)
    open_trace(page, json.dumps(export.to_json(fakes.comparison(tokens=100))))
    finish(page)
    page.locator("#why > button").click()
    page.locator("#why .main-svg").first.wait_for()
    page.get_by_role("tab").nth(1).click()
    panel(page, 1).locator(".tok").first.click()
    for width in (360, 768, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        pause(page, 200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")
    page.locator("#more > button").click()


def test_run_follows_the_prompt_and_the_focus_stays_with_run_and_stop(user):
    page = user
    focus = "document.activeElement.id"
    ask(page, "Compare TCP and UDP.", 2048)
    page.locator("#prompt textarea").focus()
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "run"
    page.keyboard.press("Enter")
    page.locator("#stop:focus").wait_for()
    page.keyboard.press("Enter")
    page.locator("#run:focus").wait_for()


def test_a_dropdown_s_list_closes_when_tab_leaves_it(user):
    page = user
    page.add_style_tag(content="[role=listbox] { max-height: 20px !important; }")  # scrolls, as the list of all models
    page.get_by_label("Models").focus()
    page.keyboard.press("ArrowDown")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("Tab")
    page.get_by_label("Models").and_(page.locator("[aria-expanded=false]")).wait_for()
    pause(page, 300)
    assert page.get_by_label("Drafter", exact=True).evaluate("box => box === document.activeElement")


def test_a_figure_says_what_it_means_to_pointer_keyboard_and_touch(visit):
    page = visit(390, touch=True)
    tip = page.get_by_role("tooltip").filter(visible=True)
    names = page.locator(".figures:visible button")
    names.nth(1).tap()
    assert tip.inner_text() == "tokens ÷ total time, prefill included"
    names.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() == "new tokens in the output"
    assert names.nth(2).get_attribute("aria-describedby") == "figure-tip"
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")


def test_charts_have_a_text_and_headings_are_in_order(reader):
    page = reader
    opened(page, *fakes.comparison().lanes)
    page.locator("#why > button").click()
    page.get_by_role("img", name="Draft tokens accepted by position in the draft. Position 1").wait_for()
    page.locator("#more > button").click()
    page.get_by_role("button", name="How this drafter works").click()
    page.locator("#about h2").wait_for()
    levels = [int(name[1]) for name in page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(it => it.tagName)")]
    assert levels[0] == 1 and all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_where_less_motion_is_asked_for_nothing_begins_to_move_and_an_idle_page_draws_nothing(contexts, url):
    page = contexts("less motion").new_page()
    page.emulate_media(reduced_motion="reduce")
    page.add_init_script("""{
      const ask = requestAnimationFrame.bind(globalThis);
      globalThis.asked = 0;
      globalThis.requestAnimationFrame = (act) => ask(act, ++asked);
    }""")
    page.goto(f"{url}?__theme=light")
    page.locator("#banner", has_text="Recorded run").wait_for()
    pause(page, 300)
    assert page.locator(".round.future").count() == 0
    assert page.locator(".replay .play", has_text="Play").is_visible()
    assert page.evaluate("asked") > 0
    quiet = "() => { const quiet = asked < 10; asked = 0; return quiet; }"
    page.wait_for_function(quiet, polling=1000, timeout=120_000)  # Gradio's loader swings on for some seconds
    page.close()
