"""The page in a real browser: what a person sees of a run, and that none of it is markup."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable

import pytest

from benchmarks.page import read_stream
from playground import export
from playground.hosting import turns
from playground.trace import Comparison, DraftToken, Memory, Round, TargetToken, Trace
from tests.browser.conftest import pause
from tests.examples import drafted_round, plain_round, trace, tree_round
from tests.ui import fakes

pytestmark = pytest.mark.browser
PANELS = ("Standard, output", "Speculative, output")
TOPS = "spans => spans.map(span => [span.offsetTop, span.offsetHeight])"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def ask(page, prompt: str, max_new_tokens: int = 40) -> None:
    page.locator("#prompt textarea").fill(prompt)
    advanced(page)
    limit = page.get_by_label("number input for Max new tokens")
    limit.fill(str(max_new_tokens))
    limit.press("Tab")
    page.wait_for_function("([box, value]) => box.value === value", arg=[limit.element_handle(), str(max_new_tokens)])


def advanced(page) -> None:
    """Opens the drawer of settings."""
    if not page.get_by_label("number input for Max new tokens").is_visible():
        page.locator("#more > button").click()
        page.get_by_label("number input for Max new tokens").wait_for()
        pause(page, 800)  # what is typed while the settings unfold is lost


def panel(page, index: int):
    return page.get_by_label(PANELS[index], exact=True)


def start(page) -> None:
    """Presses Run and waits until the recorded run is gone from the stage."""
    page.locator("#run").click()
    page.locator("#banner").wait_for(state="hidden")  # once there is a round


def finish(page) -> None:
    """Waits for a run's end, or for a trace that was opened."""
    page.locator("#status", has_text=re.compile("Done in|Ran on")).wait_for()


def saved(page, awaited: Callable[[Comparison], bool] = lambda it: True) -> Comparison:
    """What Save trace gives. `awaited`: of the file that is meant, where an earlier one stays until it is written, a
    moment after the stage."""
    for _ in range(400):
        with page.expect_download() as download:
            page.locator("#save").click()
        with open(download.value.path(), encoding="utf-8") as file:
            found = export.load(file.read())
        if awaited(found):
            return found
        page.wait_for_timeout(250)
    raise AssertionError("the file that is saved is an earlier one")


def open_trace(page, text: str) -> None:
    file = {"name": "trace.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(file)


def shown(page, index: int) -> list[list]:
    """Each token's id, text and kind as the panel has them. Leading white space stands before a token's element."""
    script = """spans => spans.map(span => [
        Number(span.dataset.id), (span.lead ? span.lead.data : "") + span.textContent, span.classList[1]
    ])"""
    return panel(page, index).locator(".tok").evaluate_all(script)


def recorded(lane: Trace, rejected: bool = False) -> list[list]:
    """The same from the trace: the output alone, or with what was rejected (chains only)."""
    tokens = []
    for round_ in lane.rounds:
        drafted = round_.drafted if rejected else round_.accepted
        tokens += [[token.id, token.text, token.decision] for token in drafted]
        if round_.target:
            tokens += [[round_.target.id, round_.target.text, round_.target.reason]]
    return tokens


def opened(page, *lanes: Trace) -> None:
    open_trace(page, json.dumps(export.to_json(Comparison(lanes))))
    finish(page)


def test_a_run_streams_both_panels_and_marks_every_token_as_the_trace_has_it(user, held):
    """What is unfolded while it goes on shows this run once it has ended."""
    page = user
    ask(page, "Compare TCP and UDP.", 128)
    start(page)
    page.locator("#why > button").click()
    for index in range(2):
        panel(page, index).locator(".tok").first.wait_for()
    begun = [panel(page, index).inner_text() for index in range(2)]
    held.set()
    finish(page)
    for index in range(2):
        text = panel(page, index).inner_text()
        assert text.startswith(begun[index].rstrip()) and len(text) > len(begun[index])

    figure = page.locator("#verdict .figure").inner_text().removeprefix("≈ ")
    page.locator("#why .bartext", has_text=figure).wait_for()
    comparison = saved(page)
    for index, lane in enumerate(comparison.lanes):
        assert shown(page, index) == recorded(lane)
        assert panel(page, index).evaluate("panel => panel.textContent") == lane.text
    assert re.fullmatch(r"\d+\.\d\d×", page.locator("#verdict .figure").inner_text())
    assert "Identical output: 128 tokens." in page.locator("#explained").inner_text()

    page.wait_for_function("new URLSearchParams(location.search).has('id')")  # it is kept
    page.reload()
    page.locator("#model", has_text="is ready").wait_for()
    page.locator("#why > button").click()  # while the run of the address may still be on its way
    page.locator("#banner", has_text="Opened from the history").wait_for()
    assert panel(page, 1).evaluate("panel => panel.textContent") == comparison.lanes[1].text
    page.locator("#why .bartext", has_text=figure).wait_for()
    page.wait_for_function("figure => document.title.startsWith(figure)", arg=figure)
    page.locator("#run").click()
    page.wait_for_function("document.title === 'Speculative Decoding Playground'")  # that of no earlier run
    page.locator("#stop").click()


def test_a_token_tells_its_round_and_probabilities_to_mouse_and_keyboard(user):
    page = user
    ask(page, "Compare TCP and UDP.", 24)
    page.locator("#prompt textarea").press("Control+Enter")
    finish(page)
    tip = page.locator("#token-tip")

    page.get_by_label("Show guesses").check()
    rejected = panel(page, 1).locator("del.rejected").first
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


def test_guesses_and_white_space_are_shown_where_the_switch_asks_for_it(reader):
    page = reader
    comparison = fakes.comparison(tokens=48)
    opened(page, *comparison.lanes)
    switch = page.get_by_label("Show guesses")
    assert not switch.is_checked() and shown(page, 1) == recorded(comparison.lanes[1])
    assert "␣" not in panel(page, 0).inner_text()
    switch.check()
    ids = [token[0] for token in shown(page, 1)]
    assert ids == [token[0] for token in recorded(comparison.lanes[1], rejected=True)]
    assert panel(page, 1).locator(".rejected:not(del), .unverified:not(del)").count() == 0
    assert "␣" in panel(page, 0).inner_text()
    switch.uncheck()
    assert shown(page, 1) == recorded(comparison.lanes[1])


def test_lanes_break_lines_alike_and_no_mark_begins_with_white_space(reader):
    page = reader
    opened(page, *fakes.comparison(tokens=300).lanes)
    for width in (1280, 1000, 900):
        page.set_viewport_size({"width": width, "height": 900})
        tops = [panel(page, i).locator(".tok:not(.part)").evaluate_all(TOPS) for i in range(2)]
        assert tops[0] == tops[1]
    texts = panel(page, 1).locator(".tok:not(.blank)").all_inner_texts()
    assert not [text for text in texts if text != text.lstrip()]
    blank = panel(page, 1).locator(".bonus.blank, .accepted.blank").first
    assert blank.evaluate("span => getComputedStyle(span).textDecorationLine") == "none"


def test_a_token_opens_its_round_at_the_foot_of_the_window_to_mouse_and_keyboard(reader):
    page = reader
    opened(page, *fakes.comparison(tokens=120).lanes)
    round_ = page.get_by_label("The round", exact=True)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        if width < 500:
            page.get_by_role("tab").nth(1).click()
        for number in (2, 9):
            token = panel(page, 1).locator(f".round[data-round='{number}'] .tok").first
            token.click()
            assert round_.locator(".which").inner_text().startswith(f"Speculative, round {number} of ")
            box, mine = round_.bounding_box(), token.bounding_box()
            assert mine["y"] + mine["height"] <= box["y"] and box["y"] + box["height"] <= 900.5, (
                "beside what was pressed"
            )
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert "nay" in round_.inner_text()
    page.keyboard.press("Escape")
    assert round_.is_hidden()
    panel(page, 1).locator("[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert "round 1 of" in round_.inner_text()
    round_.get_by_role("button", name="Forward one round").click()
    assert "round 2 of" in round_.inner_text()
    round_.get_by_role("button", name="Close").click()
    assert round_.is_hidden()


def test_token_n_lights_up_in_both_lanes(reader):
    page = reader
    opened(page, *fakes.comparison(tokens=60).lanes)
    panel(page, 0).locator(".tok").nth(9).hover()
    assert [panel(page, i).locator(".lit").all_inner_texts() for i in range(2)] == [
        [panel(page, 0).locator(".tok").nth(9).inner_text()]
    ] * 2
    page.mouse.move(0, 0)
    assert page.locator(".lit").count() == 0


def test_both_lanes_mark_where_the_outputs_differ(reader):
    page = reader
    standard = trace([plain_round(1), plain_round(2, start_s=1, margin=0.02), plain_round(3, start_s=2)])
    opened(
        page, standard, trace([drafted_round([1, 5], accepted=1, own=7), plain_round(3, start_s=1)], drafter="ngram")
    )
    for index, after in ((0, ["2 ", "3 "]), (1, ["7 ", "3 "])):
        mark = panel(page, index).get_by_role("note")
        assert mark.inner_text() == "identical up to token 1 of 3 · outputs differ here: “2” / “7”, logits 0.02 apart"
        dimmed = panel(page, index).locator(".differs ~ .tok, .parts ~ .round .tok")
        assert [text.strip() for text in dimmed.all_inner_texts()] == [text.strip() for text in after]


def test_stop_ends_the_run_and_keeps_what_was_decoded(user):
    page = user
    ask(page, "Compare TCP and UDP.", 2048)
    start(page)
    panel(page, 0).locator(".tok").nth(5).wait_for()
    page.locator("#stop").click()
    page.locator("#status", has_text="Stopped").wait_for()
    assert len(shown(page, 0)) >= 5
    assert page.locator("#prompt textarea").input_value() == "Compare TCP and UDP."
    comparison = saved(page)
    assert [shown(page, index) for index in range(2)] == [recorded(lane) for lane in comparison.lanes]
    assert all(lane.rounds and lane.finish == "stopped" for lane in comparison.lanes), "they decode by turns"
    page.locator("#run:not([disabled])").wait_for()


def test_markup_in_prompt_and_output_is_text(user):
    page = user
    hostile = (
        "echo <script>alert(1)</script><img src=x onerror=alert(2)> {{ value }} ${alert(3)} ‮abc‬ &amp; \u05d0\u05d1"
    )
    ask(page, hostile)
    page.locator("#run").click()
    finish(page)
    assert panel(page, 0).evaluate("panel => panel.textContent") == hostile
    page.locator("#all-details > button").click()
    page.locator("#details", has_text=hostile).wait_for()  # drawn a moment after the stage
    assert page.locator(".tokens img, .tokens script, #details img, #details script").count() == 0


def test_an_error_is_a_sentence_and_loses_nothing(user):
    page = user
    comparison = fakes.comparison()
    opened(page, *comparison.lanes)
    before, address = page.locator("#verdict .figure").inner_text(), page.url
    ask(page, "fail please")
    page.locator("#run").click()
    error = page.locator("#status[role=alert]")
    error.wait_for()
    assert error.inner_text() == "The device ran out of memory <b>here</b>. Ask for fewer tokens."
    assert page.locator("#prompt textarea").input_value() == "fail please"
    assert page.locator("#verdict .figure").inner_text() == before, "what was shown stays"
    page.locator("#run:not([disabled])").wait_for()
    assert saved(page) == comparison, "and can be saved"
    assert page.url == address, "and is what the address names"
    ask(page, "crash please")
    page.locator("#run").click()
    page.locator("#status[role=alert]", has_text="Internal error").wait_for()
    reserve = page.get_by_label("Reserve memory (GB)")
    for value in ("-1", "0"):
        reserve.fill(value)
        reserve.press("Tab")
        ask(page, "Compare TCP and UDP.", 8)
        if value == "-1":
            page.locator("#run:enabled").click()
            page.locator("#status", has_text="1,000,000,000").wait_for()
    page.locator("#run:enabled").wait_for()
    page.locator("#run").click()
    finish(page)
    assert page.locator("#verdict").is_visible()


def test_a_trace_is_drawn_again_without_a_model_and_a_bad_file_changes_nothing(reader):
    page = reader
    comparison = fakes.comparison(tokens=48)
    open_trace(page, json.dumps(export.to_json(comparison)))
    finish(page)
    for index, lane in enumerate(comparison.lanes):
        assert shown(page, index) == recorded(lane)
    open_trace(page, '{"a": 1}')
    page.get_by_text("not a trace of the playground").wait_for()
    assert shown(page, 1) == recorded(comparison.lanes[1])


def test_words_of_an_opened_trace_are_never_tags(reader):
    page = reader
    tags = "<a id='bad' href='/x'>y</a>"  # short enough to be told whole
    open_trace(page, json.dumps({"schema_version": tags, "lanes": []}))
    page.get_by_text(tags).wait_for()
    comparison = fakes.comparison(tokens=48)
    standard, assisted = comparison.lanes
    named = dataclasses.replace(assisted, lane=dataclasses.replace(assisted.lane, name=tags))
    open_trace(page, json.dumps(export.to_json(Comparison((standard, named)))))
    finish(page)
    page.wait_for_function("tags => document.body.innerText.includes(tags)", arg=tags)
    assert page.locator("#bad, [*|href='/x']").count() == 0


def test_a_draft_tree_shows_what_was_kept_and_opens_beside_it(reader):
    page = reader
    opened(page, trace([plain_round(6), plain_round(9, start_s=1)]), trace([tree_round()], drafter="tree"))
    assisted = panel(page, 1)
    assert assisted.locator(".tok").all_inner_texts() == ["6 ", "9 "]
    assisted.locator(".tok").first.click()
    popover = page.get_by_label("The round", exact=True)
    assert popover.locator(".which").inner_text() == "Speculative, round 1 of 1: guessed 5, kept 1, +1 free"
    kinds = popover.locator("svg .node").evaluate_all("nodes => nodes.map(node => node.getAttribute('class'))")
    names = [text.split("q")[0].split("p")[0] for text in popover.locator("svg .node").all_text_contents()]
    assert list(zip(names, kinds, strict=True)) == [
        ("6", "node accepted"),
        ("9", "node correction own"),
        ("7", "node rejected"),
        ("8", "node rejected"),
        ("4", "node rejected"),
        ("5", "node unverified"),
    ]
    assert popover.locator(".spoken li").nth(1).inner_text() == "Position 2 after “4”: “5”, q 0.40, p –, not checked"
    assert "drafter's 3rd choice" in popover.inner_text()
    assert "It brought 2 tokens instead of 1." in popover.inner_text()
    page.get_by_label("Show guesses").check()
    assert [text.strip("␣\u200b ") for text in assisted.locator("del").all_inner_texts()] == ["4", "7", "8"]


def test_a_large_tree_is_folded_and_unfolds_on_request(reader):
    page = reader
    root = [DraftToken(i, f" w{i}", False, 0.9 / i, 0.1, 0.5, "rejected", -1) for i in range(1, 17)]
    below = [DraftToken(90, HOSTILE, False, 0.5, None, None, "unverified", 15)]
    own = TargetToken(99, " new", False, 0.9, 0.5, "correction", rank=0)
    round_ = Round(17, (*root, *below), own, 0.0, 0.1, 0.1, 0.2)
    opened(page, trace([plain_round(99)]), trace([round_], drafter="tree"))
    panel(page, 1).locator(".tok").first.click()
    popover = page.get_by_label("The round", exact=True)
    assert [text for text in popover.locator("svg .more text").all_text_contents()] == ["+15"]
    popover.get_by_role("button", name="Show all").click()
    assert popover.locator("svg .node").count() == 18
    assert popover.locator("img").count() == 0 and popover.locator(".spoken li").nth(16).inner_text().count("<img") == 1
    assert popover.get_by_role("button", name="Show all").count() == 0
    page.keyboard.press("Escape")
    assert popover.is_hidden()


def test_the_help_follows_the_drafter_and_memory_is_a_line(visit):
    page = visit()
    page.locator("#more > button").click()
    page.get_by_text("How this drafter works").click()
    page.locator("#about", has_text="prompt lookup").wait_for()
    page.get_by_label("Drafter", exact=True).click()
    page.get_by_role("option", name="Standard again").click()
    page.locator("#about h2", has_text="Standard again").wait_for()

    lanes = [trace([plain_round(6)]), trace([drafted_round([1], accepted=1, own=2)], drafter="ngram")]
    held = [dataclasses.replace(lane, memory=Memory(3_000_000, 2_000_000, 0, 0)) for lane in lanes]
    open_trace(page, json.dumps(export.to_json(Comparison(tuple(held)))))
    finish(page)
    page.locator("#all-details > button").click()
    assert "Standard 5.0 MB; Assisted 5.0 MB" in page.locator("#details dl").inner_text()


@pytest.mark.slow
def test_the_second_user_sees_a_place_in_the_line_and_a_closed_tab_frees_it(visit):
    first, second = visit(), visit()
    ask(first, "Compare TCP and UDP.", 2048)
    ask(second, "Compare TCP and UDP.", 8)
    start(first)
    panel(first, 0).locator(".tok").first.wait_for()
    second.locator("#run").click()
    second.locator("#status", has_text="2nd in").wait_for()
    first.close()
    panel(second, 0).locator(".tok").first.wait_for()  # the first would go on for longer than that
    finish(second)


def test_a_tab_that_is_loaded_anew_finds_its_run_and_stop_says_how_far_both_lanes_got(user, monkeypatch):
    monkeypatch.setattr(turns, "RETURNS_S", 120)
    page = user
    ask(page, "Compare TCP and UDP.", 2048)
    start(page)
    panel(page, 0).locator(".tok").nth(20).wait_for()
    page.reload()
    page.locator("#stop:enabled").wait_for()
    panel(page, 0).locator(".tok").nth(30).wait_for()
    assert page.locator("#prompt textarea").input_value() == "Compare TCP and UDP."
    assert not page.locator("#banner").is_visible() and "old" not in page.locator("#stage").get_attribute("class")
    page.locator("#stop").click()
    far = re.compile(r"Stopped after \d+ tokens\. Both lanes compared so far: \d")
    page.locator("#status", has_text=far).wait_for()
    page.locator("#run:enabled").wait_for()
    figure = page.locator("#verdict .figure").inner_text()
    ask(page, "")
    page.locator("#run").click()
    page.locator("#status[role=alert]", has_text="The prompt is empty").wait_for()
    page.locator("#run:enabled").wait_for()
    assert page.locator("#verdict .figure").inner_text() == figure, "what was shown stays"
    page.locator("#stage.old").wait_for()  # of other settings than those that failed


def test_one_press_applies_the_checkpoints_own_sampling_settings(visit):
    page = visit()
    advanced(page)
    offer = page.locator("#own-settings")
    offer.get_by_text("temperature 0.6, top-p 0.95, top-k 20").wait_for()
    offer.get_by_role("button").click()
    offer.wait_for(state="hidden")
    ask(page, "Compare TCP and UDP.", 8)
    page.locator("#run").click()
    finish(page)
    request = saved(page).lanes[0].request
    assert (request.temperature, request.top_p, request.top_k) == (0.6, 0.95, 20)


def test_repeat_gives_a_range_and_leaves_a_file_with_all_runs(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 8)
    assert not page.locator("#explained .again").is_visible(), "the recorded run is not ours to repeat"
    page.locator("#run").click()
    finish(page)
    page.locator("#explained .again").click()
    page.locator("#verdict .range", has_text="5 runs each").wait_for()
    saved(page, lambda it: len(it.repeats) == 4)
    page.locator("#runs label", has_text=page.locator("#verdict .figure").inner_text()).wait_for()
    assert page.locator("#runs label").count() == 1, "the same run"


def test_the_list_of_models_is_honest_and_a_large_download_is_asked_first(visit):
    page = visit()
    models = page.locator("#pair input")
    models.click()
    page.get_by_role("option", name="Large pair · too large here (needs 82 GB, 21 GB free)").click()
    page.locator("#pair", has_text="Cannot run").wait_for()
    ask(page, "Compare TCP and UDP.", 8)
    page.locator("#run").click()
    page.locator("#status[role=alert]", has_text="82 GB").wait_for()
    models.click()
    page.get_by_role("option", name="Far pair · needs a download (2.4 GB)").click()
    page.locator("#run:enabled").click()
    page.get_by_role("button", name="Download 2.4 GB and run").click()
    finish(page)
    assert page.locator("#status .offer").is_hidden()


def test_the_benchmark_reads_the_stream_of_the_run_button(url):
    comparison = read_stream(url.rstrip("/"), "Compare TCP and UDP.", 24)
    assert comparison.standard.request.prompt == "Compare TCP and UDP."
    assert [len(lane.tokens) for lane in comparison.lanes] == [24, 24]
    assert comparison.lanes[1].lane.drafter == fakes.PAIR.drafter
