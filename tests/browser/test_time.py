"""The rounds timeline and the replay, drawn from a value without Gradio: the stage's scripts on a blank page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from playground.trace import Comparison
from playground.ui.compare.shown import Screen
from playground.views import scripts
from playground.views.stage import packed
from tests.browser.conftest import pause
from tests.examples import drafted_round, plain_round, trace, tree_round
from tests.ui import fakes

pytestmark = pytest.mark.browser

# What Gradio's HTML component gives the script, and a record of what the parts of the stage tell each other.
MOUNT = """([script, value]) => {
  window.props = { value };
  window.told = [];
  const dispatch = EventTarget.prototype.dispatchEvent;
  EventTarget.prototype.dispatchEvent = function (event) {
    if (["select", "seek"].includes(event.type)) window.told.push([event.type, event.detail]);
    return dispatch.call(this, event);
  };
  const watch = (_, act) => (window.update = (next) => ((window.props.value = next), act()));
  const args = ["element", "props", "watch", "trigger"];
  new Function(...args, script)(document.body, window.props, watch, null);
}"""

# Presses Play, and says at once whether there are rounds to come, and what the button does then.
PLAY = """() => {
  const play = document.querySelector(".replay .play");
  play.click();
  return [document.querySelector(".tokens .round.future") !== null, play.textContent];
}"""
DRAWN = "() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


@pytest.fixture
def stage(chromium) -> Iterator[Callable]:
    """Draws a value on a page of its own; a script's error on it fails the test."""
    contexts, errors = [], []

    def draw(value: dict[str, Any], width: int = 1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_content('<!doctype html><body><div class="stage"></div></body>')
        for name in ("page.css", *sorted(f"css/{path.name}" for path in (scripts.ASSETS / "css").glob("*.css"))):
            page.add_style_tag(path=scripts.ASSETS / name)
        page.evaluate(MOUNT, [scripts.component("stage/stage.js", "stage"), packed(value)])
        page.evaluate(DRAWN)
        return page

    yield draw
    for context in contexts:
        context.close()
    assert errors == []


def lane_until(lane: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The lane while it runs, after so many rounds."""
    return lane | {"state": "running", "log": "".join(lane["log"].splitlines(keepends=True)[:rounds])}


def value_of(comparison: Comparison, **changes) -> dict[str, Any]:
    screen = Screen()
    screen.load(comparison)
    return json.loads(json.dumps({**screen.value(), **changes}))


def blocks(page, lane: int, kind: str):
    return page.locator(f'.timeline .band[data-lane="{lane}"] path.{kind}')


def zoom_of(page) -> float:
    """Pixels a second."""
    return page.locator(".timeline .band g[transform]").first.evaluate("node => node.transform.baseVal[0].matrix.a")


def told(page, name: str) -> list:
    return [detail for said, detail in page.evaluate("window.told") if said == name]


def press_round(page, comparison: Comparison, lane: int, number: int) -> None:
    """Presses the middle of a round's block."""
    round_ = comparison.lanes[lane].rounds[number - 1]
    total = max(lane.rounds[-1].end_s for lane in comparison.lanes)
    plot = page.locator(".timeline .plot svg").bounding_box()
    y = page.locator(f'.timeline .band[data-lane="{lane}"] path').first.bounding_box()
    share = (round_.start_s + round_.end_s) / 2 / total
    page.mouse.click(plot["x"] + share * (plot["width"] - 6), y["y"] + y["height"] - 2)


def kept(page, index: int) -> int:
    """The rounds that a lane's panel shows."""
    return page.locator(".tokens").nth(index).locator(".round:not(.future)").count()


def test_a_block_its_facts_its_tokens_and_its_phases_choose_each_other(stage):
    comparison = fakes.comparison()
    page = stage(value_of(comparison))
    press_round(page, comparison, 1, 4)
    facts = page.locator("#round-tip").inner_text()
    round_ = comparison.lanes[1].rounds[3]
    times = [f"{1000 * seconds:g} ms" for seconds in (round_.draft_s, fakes.PASS_S)]
    for fact in ("Round 4", "draft", "verify", *times, f"{len(round_.accepted)} of {len(round_.drafted)}"):
        assert fact in facts
    assert page.locator(".tokens").nth(1).locator(".round.selected").get_attribute("data-round") == "4"
    assert page.locator(".timeline rect.chosen").is_visible()
    assert "round 4 of" in page.locator(".round-panel .which").inner_text()

    page.locator(".tokens").nth(0).locator(".round .tok").nth(6).click()
    assert "Standard, round 7 of" in page.locator(".round-panel .which").inner_text()
    assert page.locator(".tokens").nth(1).locator(".round.selected").count() == 0
    assert told(page, "select") == [{"lane": 1, "round": 4}, {"lane": 0, "round": 7}], "no selection answers another"


def test_keys_go_from_round_to_round_and_zoom(stage):
    page = stage(value_of(fakes.comparison()))
    plot = page.locator(".timeline .plot")
    plot.focus()
    whole = zoom_of(page)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "End", "ArrowDown"):
        page.keyboard.press(key)
    chosen = [(it["lane"], it["round"]) for it in told(page, "select")]
    last = len(fakes.comparison().lanes[1].rounds)
    assert chosen == [(1, 1), (1, 2), (1, 1), (0, 1), (0, 60), (1, last)]
    assert page.locator("#round-tip").is_visible()
    page.keyboard.press("+")
    assert zoom_of(page) == pytest.approx(2 * whole)
    page.keyboard.press("Home")  # comes into view
    box, frame = page.locator(".timeline rect.chosen").bounding_box(), plot.bounding_box()
    assert frame["x"] - 3 <= box["x"] <= frame["x"] + frame["width"]
    page.keyboard.press("0")
    assert zoom_of(page) == pytest.approx(whole)
    page.keyboard.press("Escape")
    assert page.locator(".timeline rect.chosen").is_hidden() and page.locator("#round-tip").is_hidden()
    summary = plot.get_attribute("aria-label")
    assert f"Standard: 60 rounds in {61 * fakes.PASS_S:.2f} s" in summary and "Speculative" in summary


def test_the_pointer_zooms_pans_and_resets(stage):
    page = stage(value_of(fakes.comparison()))
    plot = page.locator(".timeline .plot svg")
    plot.scroll_into_view_if_needed()
    box, whole = plot.bounding_box(), zoom_of(page)
    middle = box["x"] + box["width"] / 2, box["y"] + 30
    shift = "node => node.transform.baseVal[0].matrix.e"
    page.mouse.move(*middle)
    page.mouse.wheel(0, -100)
    assert zoom_of(page) == whole, "the wheel alone scrolls the page"
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + 30
    page.mouse.move(*middle)
    page.get_by_role("button", name="Zoom in").click()
    page.mouse.move(*middle)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    assert zoom_of(page) > 2.1 * whole
    before = page.locator(".timeline .band g[transform]").first.evaluate(shift)
    page.mouse.down()
    page.mouse.move(middle[0] + 80, middle[1], steps=4)
    page.mouse.up()
    after = page.locator(".timeline .band g[transform]").first.evaluate(shift)
    assert after - before == pytest.approx(80, abs=1)
    assert told(page, "select") == [], "a drag chooses nothing"
    page.mouse.dblclick(*middle)
    assert zoom_of(page) == pytest.approx(whole)


def test_a_lane_says_that_the_token_limit_ended_it(stage):
    standard, ours = fakes.comparison().lanes
    page = stage(value_of(Comparison((replace(standard, finish="eos"), replace(ours, finish="length")))))
    assert page.locator(".lane-head .chip").all_inner_texts() == ["done", "done: token limit"]
    assert page.locator(".guessing-switch .sample").is_visible(), "what the underlined tokens are"


def test_a_growing_run_adds_blocks_and_leaves_those_that_stand(stage):
    comparison = fakes.comparison()
    value = value_of(comparison)
    lines = value["lanes"][0]["log"].splitlines(keepends=True)

    def streamed(n: int) -> dict[str, Any]:
        running = {**value["lanes"][0], "log": "".join(lines[:n]), "state": "running", "timing": None}
        waiting = {**value["lanes"][1], "log": "", "state": "waiting", "timing": None}
        return {**value, "lanes": [running, waiting]}

    page = stage(streamed(10))
    page.evaluate("document.querySelector('.timeline path.verify').mine = true")
    tall = page.locator(".timeline .plot").bounding_box()["height"]
    page.evaluate("value => update(value)", packed(streamed(15)))
    assert blocks(page, 0, "verify").count() == 3  # the first round, those drawn before, those added
    assert blocks(page, 0, "verify").first.evaluate("node => node.mine")
    assert page.locator(".replay .play").is_disabled()
    page.evaluate("value => update(value)", packed(value))
    assert page.locator(".timeline .plot").bounding_box()["height"] == tall
    assert page.locator(".replay .play").is_enabled()
    page.evaluate("value => update(value)", packed(streamed(3)))
    assert blocks(page, 0, "verify").count() == 2 and blocks(page, 1, "verify").count() == 0


def test_a_running_race_says_who_leads_at_the_time_that_both_clocks_have_reached(stage):
    comparison = fakes.comparison()
    value, (base, other) = value_of(comparison), comparison.lanes
    rounds = base.rounds[:6], other.rounds[:5]
    reached = min(lane[-1].end_s for lane in rounds)
    base_tokens, other_tokens = (sum(len(it.tokens) for it in lane if it.end_s <= reached) for lane in rounds)
    assert other_tokens > base_tokens
    running = value | {"lanes": [*map(lane_until, value["lanes"], (6, 5))]}
    running |= {"status": {"text": "", "kind": "busy", "fraction": 0.5}, "verdict": value["verdict"] | {"terms": None}}
    page = stage(running)
    assert page.locator("#verdict .figure").text_content() == f"{other_tokens / base_tokens:.2f}×"
    assert f"is {other_tokens - base_tokens} token" in page.locator("#verdict .meaning").text_content()
    page.evaluate("value => update(value)", packed(value))
    assert page.locator("#verdict .figure").text_content() == value["verdict"]["figure"]


def test_drafting_is_hatched_and_unknown_times_make_one_neutral_block(stage):
    comparison = fakes.comparison()
    page = stage(value_of(comparison))
    fill = "node => getComputedStyle(node).fill"
    assert "timeline-hatch" in blocks(page, 1, "draft").first.evaluate(fill)
    assert blocks(page, 0, "draft").count() == 0
    silent = [replace(round_, draft_s=None, verify_s=None) for round_ in comparison.lanes[1].rounds]
    lanes = (comparison.lanes[0], replace(comparison.lanes[1], rounds=tuple(silent)))
    page = stage(value_of(Comparison(lanes)))
    assert blocks(page, 1, "unknown").count() == 3  # the first round, those that drafted, the others
    assert blocks(page, 1, "draft").count() == blocks(page, 1, "verify").count() == 0
    page.locator(".timeline .plot").focus()
    page.keyboard.press("ArrowRight")
    assert "unknown" in page.locator("#round-tip").inner_text()
    assert "in an unknown time" in page.locator(".round-panel .phases").inner_text()


def test_a_long_prefill_is_cut_short_and_says_so(stage):
    short = [plain_round(i, start_s=5 + 0.1 * i) for i in range(1, 9)]
    lanes = [trace([plain_round(0, verify_s=5.1), *short], name=name) for name in ("Standard", "Again")]
    page = stage(value_of(Comparison(tuple(lanes))))
    assert page.locator(".timeline .stub .break").count() == 2
    assert (
        page.locator(".timeline .caption")
        .first.text_content()
        .startswith("Standard  9 of 9 · prefill 5,100 ms, cut short")
    )
    width = page.locator(".timeline .plot").bounding_box()["width"]
    assert zoom_of(page) * 0.8 > 0.8 * width, "the rest has the room"
    page = stage(value_of(fakes.comparison()))
    assert page.locator(".timeline .stub .break").count() == 0


def test_gaps_have_percentiles_and_say_of_how_many(stage):
    page = stage(value_of(fakes.comparison()))
    page.locator(".gaps summary").click()
    table = page.locator(".gaps table")
    assert table.locator("tbody tr").count() == 2
    gap = f"{1000 * fakes.PASS_S:.1f}"
    assert table.locator("tbody tr").first.inner_text().split() == ["Standard", gap, gap, gap, "59"]
    assert page.locator(".gaps path.share").count() == 2
    assert "came together with the one before" in page.locator(".gaps").inner_text()


def test_the_scrubber_shows_both_lanes_at_one_time(stage):
    comparison = fakes.comparison()
    page = stage(value_of(comparison))
    everything = [kept(page, 0), kept(page, 1)]
    scrubber = page.get_by_label("Time of the replay")
    time = 20.5 * fakes.PASS_S
    scrubber.fill(str(time))
    ended = [sum(round_.end_s <= time for round_ in lane.rounds) for lane in comparison.lanes]
    assert [kept(page, 0), kept(page, 1)] == ended
    assert 0 < ended[0] < everything[0]
    assert page.locator(".timeline .veil").is_visible()
    box = scrubber.bounding_box()
    low, high = (float(scrubber.get_attribute(bound)) for bound in ("min", "max"))
    thumb = box["x"] + 7 + (box["width"] - 14) * (time - low) / (high - low)
    assert page.locator(".timeline .cursor").bounding_box()["x"] == pytest.approx(thumb, abs=2)
    assert scrubber.get_attribute("aria-valuetext") == f"{time:.2f} of {61 * fakes.PASS_S:.2f} seconds"
    scrubber.fill(scrubber.get_attribute("max"))
    assert [kept(page, 0), kept(page, 1)] == everything
    assert page.locator(".timeline .veil").is_hidden()


def test_arrow_keys_step_through_the_chosen_lane_in_words(stage):
    rounds = [
        drafted_round([1, 2, 9], accepted=2, own=3),
        drafted_round([4, 5], accepted=2, own=6, start_s=0.2),
        tree_round(start_s=0.4),
    ]
    standard = [plain_round(i, start_s=0.1 * i) for i in range(8)]
    asked = {"temperature": 0.7}
    comparison = Comparison((trace(standard, **asked), trace(rounds, drafter="ngram", **asked)))
    page = stage(value_of(comparison))
    scrubber = page.get_by_label("Time of the replay")

    def words() -> str:
        return " ".join(page.locator(".round-panel").inner_text().split())

    scrubber.fill("0")
    assert kept(page, 1) == 0
    scrubber.press("ArrowRight")
    assert (kept(page, 0), kept(page, 1)) == (2, 1)
    told_ = words()
    for part in ("round 1 of 3", "3 tokens in 100 ms: 1 2 9", "The model checked all 3 in 100 ms", "2 of 3 accepted"):
        assert part in told_
    assert "9 (p 0.700, q 0.800), kept with probability p ÷ q where p is below q" in told_
    assert "Sampled in its place: 3 (p 0.900)" in told_ and "3 tokens: 1 2 3" in told_
    scrubber.press("ArrowRight")
    assert "2 of 2 accepted, to the end of the draft. The same check gives one more: 6" in words()
    scrubber.press("ArrowRight")
    assert "A tree of 5 tokens, 2 deep" in words()
    assert "1 token accepted. Rejected: 7 (p 0.300, q 0.400), 8 (p 0.300, q 0.400)" in words()
    scrubber.press("ArrowRight")
    assert "round 3 of 3" in words()
    scrubber.press("ArrowLeft")
    assert "round 2 of 3" in words() and kept(page, 1) == 2
    page.locator(".timeline .plot").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_label("Forward one round").click()
    assert "Standard" in words() and "A standard step of the model in 100 ms" in words()


def test_a_sampled_decision_shows_the_numbers_that_decided(stage):
    drafted = drafted_round([1, 2, 9], accepted=1, own=3)
    draws = [replace(token, draw=u) for token, u in zip(drafted.drafted, (0.41, 0.9), strict=False)]
    round_ = replace(drafted, drafted=(*draws, drafted.drafted[2]))
    lanes = (trace([plain_round(1)], temperature=0.7), trace([round_], drafter="assistant", temperature=0.7))
    page = stage(value_of(Comparison(lanes)))
    page.get_by_label("Time of the replay").press("ArrowRight")
    words = page.locator(".round-panel .decision").inner_text()
    assert "r 0.41 ≤ p/q 0.87: accepted" in words and "r 0.90 > p/q 0.87: rejected" in words


def test_play_runs_to_the_end_and_a_new_run_takes_over(stage):
    comparison = fakes.comparison()
    page = stage(value_of(comparison))
    page.get_by_label("Pace, in times").select_option("4×")
    assert page.evaluate(PLAY) == [True, "❚❚ Pause"]
    page.wait_for_function("!document.querySelector('.tokens .round.future')")
    page.locator(".replay .play", has_text="▶").wait_for()
    assert told(page, "seek")[-1] == {"time": float("inf"), "share": 0}, "at rest everything is shown"

    page.evaluate(PLAY)
    value = value_of(comparison)
    value["lanes"][0] = lane_until(value["lanes"][0], 1)
    value["lanes"][1] |= {"state": "waiting", "log": ""}
    page.evaluate("value => update(value)", packed(value))
    assert kept(page, 0) == 1 and page.locator(".timeline .veil").is_hidden()
    sought = len(told(page, "seek"))
    pause(page, 200)
    assert len(told(page, "seek")) == sought, "nothing runs beside a run"


def test_a_recorded_run_replays_by_itself_until_the_user_does_something(stage):
    comparison = fakes.comparison()
    value = value_of(comparison, replay=True)
    page = stage(value)
    page.wait_for_function("document.querySelector('.tokens .round.future')")
    page.keyboard.press("Tab")
    assert page.locator(".tokens .round.future").count() == 0
    page.evaluate("value => update(value)", packed(value))
    pause(page, 150)
    assert page.locator(".tokens .round.future").count() == 0, "it begins once"

    page = stage(value | {"replay": "loop"})
    caption, guesses = page.locator(".replay .caption"), page.locator(".tokens").nth(1).locator(".guessing")
    caption.get_by_text("Slow, round 3: 4 guesses …").wait_for()
    guesses.locator(".guesses .in", has_text="nay").first.wait_for()
    caption.get_by_text("all 4 checked at once …").wait_for()
    page.locator(".guessing.judged").wait_for(state="attached")
    page.locator(".replay .caption:text-is('Round 3: guessed 4, kept 1, +1 free')").wait_for()
    assert guesses.count() == 0, "what was not kept is gone"
    page.mouse.wheel(0, 1)
    page.locator(".replay .play", has_text="Play").wait_for()
    ahead = comparison.lanes[0].rounds[-1].end_s - comparison.lanes[1].rounds[-1].end_s
    assert page.locator(".timeline .flag:visible").text_content() == f"⚑ {ahead:.2f} s ahead"

    still = stage(value, reduced_motion="reduce")
    pause(still, 150)
    assert still.locator(".tokens .round.future").count() == 0
    assert still.locator(".timeline .flag:visible").count() == 1
    lanes = [lane | {"state": "stopped"} for lane in value["lanes"]]
    stopped = stage(value | {"lanes": lanes}, reduced_motion="reduce")
    assert stopped.locator(".timeline .flag:visible").count() == 0, "a lane that was stopped wins nothing"


def test_a_run_replays_though_its_lanes_ended_before_it(stage):
    """As where the baseline runs again after both."""
    value = value_of(fakes.comparison())
    page = stage(value)
    page.evaluate("value => update(value)", packed(value | {"replay": "once"}))
    page.wait_for_function("document.querySelector('.tokens .round.future')")


def test_a_phone_has_room_and_a_tap_chooses(stage):
    comparison = fakes.comparison()
    page = stage(value_of(comparison), width=390, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".timeline .plot").scroll_into_view_if_needed()
    y = page.locator('.timeline .band[data-lane="1"] path').first.bounding_box()
    page.touchscreen.tap(y["x"] + 4, y["y"] + y["height"] - 4)
    assert told(page, "select") == [{"lane": 1, "round": 1}]
    assert page.locator("#round-tip").is_visible()
    assert page.get_by_role("tab", selected=True).inner_text() == "Speculative"
    assert page.locator(".replay button").bounding_box()["height"] >= 40
