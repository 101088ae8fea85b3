"""The tabs beside Compare in a real browser."""

from __future__ import annotations

import re

import pytest

from playground.views import scripts
from tests.browser.axe import violations
from tests.browser.conftest import pause
from tests.browser.test_page import advanced, finish
from tests.browser.test_share import copied
from tests.ui import fakes

pytestmark = pytest.mark.browser
LIMIT = "number input for Max new tokens"


def started(visit, tokens: str):
    """A page whose suite runs, of so many new tokens an answer."""
    page = visit(room="best")
    page.get_by_role("button", name="Advanced").click()
    limit = page.get_by_label(LIMIT)
    limit.wait_for()
    pause(page, 800)
    limit.fill(tokens)
    limit.press("Tab")
    page.locator("#run-experiment").click()
    return page


def test_a_suite_runs_on_while_its_tab_is_closed_and_history_leads_back_to_it_with_its_controls(visit, url, held):
    page = started(visit, "16")
    page.locator("#experiment", has_text="Prompt 1 of 5").wait_for()
    page.wait_for_function("new URLSearchParams(location.search).has('id')")
    address = page.url
    page.goto(f"{url}history")
    page.locator(".history .running").wait_for()
    held.set()
    page.get_by_role("link", name="examples on Fake pair").click()
    page.locator("#experiment", has_text="Finished").wait_for()
    assert "id=" in page.url and page.url.split("id=")[1] == address.split("id=")[1]
    page.locator("#charts .main-svg").first.wait_for()
    page.get_by_text("By prompt").click()
    assert page.locator("#tables tbody tr").count() == 3 + 3 * 6 + 3 * 5
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert violations(page) == []
    with page.expect_download() as download:
        page.locator("#save-experiment").click()
    assert download.value.suggested_filename.startswith("suite-")
    page.get_by_role("button", name="Advanced").click()
    page.wait_for_function(f"document.querySelector('[aria-label=\"{LIMIT}\"]')?.value === '16'")
    assert "old" not in page.locator("#experiment").get_attribute("class").split()
    limit = page.get_by_label(LIMIT)
    limit.fill("48")
    limit.press("Tab")
    page.locator("#experiment.old").wait_for()
    page.get_by_role("radio", name="A file").check()
    page.locator("#run-experiment").click()
    page.locator("#refused", has_text="Choose a file").wait_for()
    pause(page, 1000)
    assert page.locator("#refused").is_visible(), "nothing is drawn over the refusal"
    assert page.locator("#experiment .findings").is_visible(), "what was shown stays"
    assert "old" in page.locator("#experiment").get_attribute("class").split()


def test_a_server_that_does_not_answer_is_a_sentence(visit):
    page = visit(width=390)
    page.get_by_role("link", name="Serve", exact=True).click()
    pause(page, 800)  # what is typed or pressed while the room opens is lost
    page.locator("#monitor-url").get_by_role("textbox").fill("http://127.0.0.1:1")
    page.locator("#run-monitor").click()
    page.locator("#monitor-shown [role=alert]", has_text="No server").wait_for()
    page.locator("#run-monitor:enabled").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page) == []


def test_a_comparison_is_kept_chosen_saved_and_opened_again(user, url):
    page = user
    page.evaluate("history.replaceState(0, '', '?')")  # without the id of the run before
    page.locator("#prompt textarea").fill("echo of <b>mine</b>")
    page.locator("#run").click()
    finish(page)
    page.wait_for_function("new URLSearchParams(location.search).has('id')")  # it is kept
    page.goto(f"{url}history")
    box = page.get_by_role("checkbox", name="echo of <b>mine</b>").first
    box.focus()
    page.keyboard.press("Space")
    with page.expect_download() as download:
        page.locator("#history-csv:enabled").click()
    assert download.value.suggested_filename.startswith("compare-")
    assert page.locator("#compare-entries").is_disabled() and box.is_checked()
    assert violations(page) == []
    link = page.get_by_role("link", name="echo of <b>mine</b>").first
    assert re.match(r"(≈ )?\d+\.\d\d× ", link.inner_text()), "its name begins with what runs differ in"
    page.locator("#delete-all").click()
    page.get_by_role("button", name="Keep them").click()
    page.locator("#delete-all").wait_for()
    link.click()
    page.get_by_text("Opened from the history").wait_for()
    assert page.locator("#prompt textarea").input_value() == "echo of <b>mine</b>"
    assert copied(page, "run") == re.sub(r"\?.*", f"?id={page.url.split('id=')[1]}", page.url), "it can be shared"
    assert "&amp;embed" in copied(page, "frame")


def test_a_long_history_begins_with_its_latest_and_hides_nothing_that_is_chosen(chromium):
    rows = "".join(f'<li><input type="checkbox" value="{i}" id="choose-{i}"></li>' for i in range(20))
    mount = """([script, value]) => {
      const element = document.body;
      const watch = (_, show) => (globalThis.again = show);
      new Function("element", "props", "watch", "trigger", script)(element, { value }, watch, () => {});
    }"""
    page = chromium.new_page()
    page.set_content('<div class="listed"></div>')
    page.evaluate(mount, [scripts.component("history.js", "history"), f"<ul>{rows}</ul>"])
    visible = page.locator("li:visible")
    assert visible.count() == 12
    page.get_by_role("button", name="Show all 20").click()
    assert visible.count() == 20 and page.locator("#choose-12:focus").count() == 1
    assert page.get_by_role("button").count() == 0
    page.evaluate("again()")
    assert visible.count() == 20
    page.close()


@pytest.mark.slow
def test_a_suite_that_was_stopped_is_resumed_and_deleted_in_the_history(visit, url):
    page = started(visit, "2048")
    page.locator("#experiment", has_text="Prompt 1 of 5").wait_for()
    page.locator("#stop-experiment:enabled").click()
    page.locator("#experiment", has_text="Stopped at").wait_for()
    name = page.locator("#experiment [data-experiment]").get_attribute("data-experiment")
    page.locator("#resume-experiment").click()
    page.locator("#stop-experiment:enabled").click()
    page.locator("#experiment", has_text="Stopped at").wait_for()
    page.goto(f"{url}history")
    page.locator(f"#choose-{name}").check()
    page.locator("#delete-entries:enabled").click()
    page.locator(f"#choose-{name}").wait_for(state="detached")
    page.locator("#undo-delete").click()
    page.locator(f"#choose-{name}").wait_for()
    assert page.locator("#undo-delete").is_hidden()


@pytest.mark.slow
def test_a_batch_and_a_load_are_predicted_when_unfolded(visit):
    page = visit()
    page.locator("#why > button").click()
    page.locator("#why p").first.wait_for()
    page.locator("#predicted > button").click()
    page.locator("#predicted", has_text="Under load, simulated").wait_for()
    page.locator("#predicted .main-svg").nth(1).wait_for()


def test_whoever_passes_by_with_tab_changes_no_setting(visit, url):
    page = visit()
    example = fakes.EXAMPLES[0]
    page.get_by_role("button", name=example.title).click()
    page.wait_for_function("text => document.querySelector('#prompt textarea').value === text", arg=example.text)
    page.locator("#prompt textarea").fill("my own")
    advanced(page)
    lookahead = page.get_by_label("number input for Lookahead")
    lookahead.fill("6")
    pass_by(page, "Models", "Drafter")
    assert (page.locator("#prompt textarea").input_value(), lookahead.input_value()) == ("my own", "6")

    page.goto(f"{url}sweep")
    page.get_by_label("Values").fill("2, 3")
    pass_by(page, "Models", "Setting")
    assert page.get_by_label("Values").input_value() == "2, 3"


def pass_by(page, *names: str) -> None:
    for name in names:
        page.get_by_label(name, exact=True).focus()
        page.keyboard.press("Tab")
    pause(page, 500)
