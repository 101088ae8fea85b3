"""The page in a real browser: what a person sees of a run, and that none of it is markup."""

from __future__ import annotations

import dataclasses
import json
import re
import time

import pytest

from playground import export
from playground.trace import Comparison, Memory, Trace
from tests.examples import drafted_round, plain_round, trace, tree_round
from tests.ui import fakes

pytestmark = pytest.mark.browser
PANELS = ("Standard, output", "Assisted, output")


def ask(page, prompt: str, max_new_tokens: int = 40) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.get_by_label("number input for Max new tokens").fill(str(max_new_tokens))
    page.get_by_label("number input for Max new tokens").press("Tab")


def panel(page, index: int):
    return page.get_by_label(PANELS[index], exact=True)


def finish(page) -> None:
    page.locator("#status", has_text="Done").wait_for()


def saved(page) -> Comparison:
    with page.expect_download() as download:
        page.locator("#save").click()
    with open(download.value.path(), encoding="utf-8") as file:
        return export.load(file.read())


def open_trace(page, text: str) -> None:
    file = {"name": "trace.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(file)


def shown(page, index: int) -> list[list]:
    """Each token's id, text and kind as the panel has them."""
    script = "spans => spans.map(span => [Number(span.dataset.id), span.textContent, span.classList[1]])"
    return panel(page, index).locator(".tok:not(.fork)").evaluate_all(script)


def recorded(lane: Trace) -> list[list]:
    """The same from the trace; of a tree what was accepted, since the rest is folded."""
    tokens = []
    for round_ in lane.rounds:
        visible = [token for token in round_.drafted if token.parent is None or token.decision == "accepted"]
        tokens += [[token.id, token.text, token.decision] for token in visible]
        if round_.target:
            tokens += [[round_.target.id, round_.target.text, round_.target.reason]]
    return tokens


def test_a_run_streams_both_panels_and_marks_every_token_as_the_trace_has_it(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 64)
    page.locator("#run").click()
    for index in range(2):
        lengths = []
        panel(page, index).locator(".tok").first.wait_for()
        for _ in range(4):
            lengths.append(len(panel(page, index).inner_text()))
            time.sleep(0.25)
        assert lengths[0] < lengths[-1], f"panel {index} did not grow while it ran: {lengths}"
    finish(page)

    comparison = saved(page)
    for index, lane in enumerate(comparison.lanes):
        assert shown(page, index) == recorded(lane)
    kept = page.evaluate(
        "label => [...document.querySelector(`[aria-label='${label}']`).querySelectorAll('.tok')]"
        ".filter(t => !t.matches('.rejected, .unverified')).map(t => t.textContent).join('')",
        PANELS[1],
    )
    assert kept == comparison.lanes[1].text
    assert re.fullmatch(r"\d+\.\d\d×", page.locator("#verdict .figure").inner_text())
    assert "Identical output: 64 tokens." in page.locator("#verdict").inner_text()
    page.locator("#charts .main-svg").first.wait_for()
    assert page.locator("#charts [data-testid=plotly]").count() == 4

    page.reload()
    page.locator("#model", has_text="is ready").wait_for()
    assert panel(page, 0).inner_text() == ""


def test_a_token_tells_its_round_and_probabilities_to_mouse_and_keyboard(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 24)
    page.locator("#prompt textarea").press("Control+Enter")
    finish(page)
    tip = page.locator("#token-tip")

    rejected = panel(page, 1).locator(".tok.rejected").first
    rejected.hover()
    told = tip.inner_text()
    for fact in ("rejected", "round", "position", "p (target)", "0.020", "q (drafter)", "1.000", "3.50 logits"):
        assert fact in told
    assert rejected.get_attribute("data-round") in told

    page.mouse.move(0, 0)
    panel(page, 1).locator("[tabindex='0']").focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible() and tip.inner_text() != first
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_switches_hide_rejected_tokens_and_show_white_space(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 24)
    page.locator("#run").click()
    finish(page)
    rejected = panel(page, 1).locator(".tok.rejected").first
    assert rejected.is_visible()
    page.get_by_label("Hide rejected tokens").check()
    assert rejected.is_hidden()
    assert "␣" not in panel(page, 0).inner_text()
    page.get_by_label("Show white space").check()
    assert "␣" in panel(page, 0).inner_text()


def test_stop_ends_the_run_and_keeps_what_was_decoded(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 512)
    page.locator("#run").click()
    panel(page, 0).locator(".tok").nth(5).wait_for()
    page.locator("#stop").click()
    page.locator("#status", has_text="Stopped").wait_for(timeout=3_000)
    assert len(shown(page, 0)) >= 5
    assert page.locator("#prompt textarea").input_value() == "Compare TCP and UDP."
    comparison = saved(page)
    assert [shown(page, index) for index in range(2)] == [recorded(lane) for lane in comparison.lanes]
    assert not comparison.lanes[1].rounds
    page.locator("#run:not([disabled])").wait_for()


def test_markup_in_prompt_and_output_is_text(visit):
    page = visit()
    hostile = (
        "echo <script>alert(1)</script><img src=x onerror=alert(2)> {{ value }} ${alert(3)} ‮abc‬ &amp; \u05d0\u05d1"
    )
    ask(page, hostile)
    page.locator("#run").click()
    finish(page)
    assert panel(page, 0).evaluate("panel => panel.textContent") == hostile
    assert page.locator(".tokens img, .tokens script, #details img, #details script").count() == 0
    page.locator("#details summary").click()
    assert hostile in page.locator("#details").evaluate("details => details.textContent")


def test_an_error_is_a_sentence_and_loses_nothing(visit):
    page = visit()
    ask(page, "fail please")
    page.locator("#run").click()
    error = page.locator("#status[role=alert]")
    error.wait_for()
    assert error.inner_text() == "The device ran out of memory <b>here</b>. Ask for fewer tokens."
    assert page.locator("#prompt textarea").input_value() == "fail please"
    ask(page, "crash please")
    page.locator("#run").click()
    page.locator("#status[role=alert]", has_text="inside the playground").wait_for()


def test_a_trace_is_drawn_again_without_a_model_and_a_bad_file_changes_nothing(visit):
    page = visit()
    comparison = fakes.comparison(tokens=48)
    open_trace(page, json.dumps(export.to_json(comparison)))
    finish(page)
    for index, lane in enumerate(comparison.lanes):
        assert shown(page, index) == recorded(lane)
    open_trace(page, '{"a": 1}')
    page.get_by_text("not a trace of the playground").wait_for()
    assert shown(page, 1) == recorded(comparison.lanes[1])


def test_words_of_an_opened_trace_are_never_tags(visit):
    page = visit()
    tags = "<a id='bad' href='/x'>y</a>"  # short enough to be told whole
    open_trace(page, json.dumps({"schema_version": tags, "lanes": []}))
    page.get_by_text(tags).wait_for()
    comparison = fakes.comparison(tokens=48)
    standard, assisted = comparison.lanes
    named = dataclasses.replace(assisted, lane=dataclasses.replace(assisted.lane, name=tags))
    open_trace(page, json.dumps(export.to_json(Comparison((standard, named)))))
    finish(page)
    page.locator(".legendtext", has_text=tags).first.wait_for()
    assert page.locator("#bad, [*|href='/x']").count() == 0


def test_a_draft_tree_shows_what_was_kept_and_unfolds_by_mouse_and_keyboard(visit):
    page = visit()
    lanes = (trace([plain_round(6), plain_round(9, start_s=1)]), trace([tree_round()], drafter="tree"))
    open_trace(page, json.dumps(export.to_json(Comparison(lanes))))
    finish(page)
    assisted = panel(page, 1)
    assert assisted.locator(".tok:not(.fork)").all_inner_texts() == ["6 ", "9 "]
    fork = assisted.locator(".fork")
    fork.click()
    assert assisted.locator(".tree .tok").all_inner_texts() == ["4 ", "5 ", "6 ", "7 ", "8 "]
    assert assisted.locator(".tree .accepted").all_inner_texts() == ["6 "]
    assert assisted.locator(".branch").nth(1).inner_text().endswith("p not checked")
    tip = page.locator("#token-tip")
    for i, ranked in ((3, True), (0, False)):  # only one of the two follows what was accepted
        assisted.locator(".tree .tok").nth(i).hover()
        assert ("drafter's 3rd choice" in tip.inner_text()) == ranked
    assert fork.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Enter")
    assert assisted.locator(".tree").count() == 0
    page.keyboard.press(" ")
    page.get_by_label("Hide rejected tokens").check()
    assert not assisted.locator(".tree").is_visible() and not fork.is_visible()


def test_the_help_follows_the_drafter_and_memory_is_a_table(visit):
    page = visit()
    page.get_by_text("How this drafter works").click()
    page.locator("#about", has_text="prompt lookup").wait_for()
    page.get_by_label("Drafter").click()
    page.get_by_role("option", name="None (noise check)").click()
    page.locator("#about h1", has_text="None (noise check)").wait_for()

    lanes = [trace([plain_round(6)]), trace([drafted_round([1], accepted=1, own=2)], drafter="ngram")]
    held = [dataclasses.replace(lane, memory=Memory(3_000_000, 2_000_000, 0, 0)) for lane in lanes]
    open_trace(page, json.dumps(export.to_json(Comparison(tuple(held)))))
    finish(page)
    assert page.locator("#memory tr").last.inner_text().split() == ["Total", "5.0", "MB", "5.0", "MB"]


def test_the_second_user_sees_a_place_in_the_line_and_a_closed_tab_frees_it(visit):
    first, second = visit(), visit()
    ask(first, "Compare TCP and UDP.", 1024)
    ask(second, "Compare TCP and UDP.", 8)
    first.locator("#run").click()
    panel(first, 0).locator(".tok").first.wait_for()
    second.locator("#run").click()
    second.locator("#status", has_text="You are 2nd in the queue").wait_for()
    first.context.close()
    panel(second, 0).locator(".tok").first.wait_for(timeout=4_000)
    finish(second)


def test_a_tab_loaded_anew_behind_a_whole_run_frees_the_device(visit):
    first, second = visit(), visit()
    ask(first, "Compare TCP and UDP.", 8)
    first.locator("#run").click()
    finish(first)
    ask(first, "Compare TCP and UDP.", 1024)
    first.locator("#run").click()
    panel(first, 0).locator(".tok").nth(20).wait_for()
    ask(second, "Compare TCP and UDP.", 8)
    second.locator("#run").click()
    second.locator("#status", has_text="You are 2nd in the queue").wait_for()
    first.reload()
    panel(second, 0).locator(".tok").first.wait_for(timeout=4_000)
    finish(second)


def test_a_value_that_cannot_be_is_a_sentence_and_run_can_be_pressed_again(visit):
    page = visit()
    page.get_by_text("More settings").click()
    page.get_by_label("Reserve memory (GB)").click()  # which waits until the settings have unfolded
    page.wait_for_timeout(500)
    page.get_by_label("Reserve memory (GB)").fill("-1")
    page.get_by_label("Reserve memory (GB)").press("Tab")
    page.locator("#run").click()
    page.locator("#status", has_text="must be a number from 0 to 1,000,000,000").wait_for()
    page.locator("#run:enabled").wait_for()


def test_one_press_applies_the_checkpoints_own_sampling_settings(visit):
    page = visit()
    offer = page.locator("#own-settings")
    offer.get_by_text("other sampling settings: temperature 0.6, top-p 0.95, top-k 20.").wait_for()
    offer.get_by_role("button").click()
    offer.wait_for(state="hidden")
    assert page.get_by_label("number input for Temperature").input_value() == "0.6"
    ask(page, "Compare TCP and UDP.", 8)
    page.locator("#run").click()
    finish(page)
    request = saved(page).lanes[0].request
    assert (request.temperature, request.top_p, request.top_k) == (0.6, 0.95, 20)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(visit, theme):
    page = visit(width=360, theme=theme)
    open_trace(page, json.dumps(export.to_json(fakes.comparison(tokens=300))))
    finish(page)
    page.locator("#charts .main-svg").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
