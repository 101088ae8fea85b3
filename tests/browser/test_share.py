"""Sharing in a real browser: the address, the clipboard, the picture, the file, and the strip of the last runs."""

from __future__ import annotations

import html
import json
import re
import struct
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from playground import export
from playground.experiments import session
from playground.views import replay_file
from tests.browser.axe import violations
from tests.browser.test_page import advanced, ask, finish, open_trace, recorded, saved, shown, start
from tests.ui import fakes
from tests.views.test_replay_file import HOSTILE, hostile

pytestmark = pytest.mark.browser


# Of each text that is drawn on a canvas: its line, and where it begins and ends.
NOTE_TEXTS = """() => {
  const pen = CanvasRenderingContext2D.prototype, draw = pen.fillText;
  globalThis.written = [];
  pen.fillText = function (text, x, y) {
    const wide = this.measureText(text).width, left = this.textAlign === "right" ? x - wide : x;
    globalThis.written.push([y, left, left + wide - 0.5, text]);
    draw.call(this, text, x, y);
  };
}"""


def run(page, prompt: str, max_new_tokens: int = 16) -> None:
    ask(page, prompt, max_new_tokens)
    page.evaluate("document.querySelectorAll('#status > span').forEach(said => said.textContent = '')")  # of the last
    page.locator("#run").click()
    finish(page)
    page.locator("#run:not([disabled])").wait_for()


def share(page, name: str) -> None:
    page.get_by_role("button", name="Share").click()
    page.locator(f"#share-menu [name={name}]").click()


def copied(page, name: str, told: str = "copied.") -> str:
    """What an entry of the menu puts on the clipboard, once the page says so."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('')")
    share(page, name)
    page.locator("#share .said", has_text=told).wait_for()
    for _ in range(
        1200
    ):  # what it said before may still be there, and a promise is never waited for by the page's poll
        if text := page.evaluate("navigator.clipboard.readText()"):
            return text
        page.wait_for_timeout(100)
    raise AssertionError("nothing was copied")


def wait_for_prompt(page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('#prompt textarea')?.value === text", arg=text)


def test_a_copied_link_opens_the_page_as_it_was_and_runs_nothing(visit):
    page = visit()
    ask(page, "Why & how? 100 %\nசரி", 24)
    link = copied(page, "link")
    assert parse_qs(urlsplit(link).query) == {
        "prompt": ["Why & how? 100 %\nசரி"],
        "pair": ["fake"],
        "max_new_tokens": ["24"],
    }
    assert "prompt" not in page.url, "only a run changes the address"

    page.goto(link + "&temperature=0.5&drafter=assistant")
    wait_for_prompt(page, "Why & how? 100 %\nசரி")
    advanced(page)
    assert page.get_by_label("number input for Temperature").input_value() == "0.5"
    assert page.get_by_label("number input for Max new tokens").input_value() == "24"
    assert page.locator("#drafter input").input_value().startswith("Assistant model")
    page.locator("#status", has_text="Press Run").wait_for()  # nothing is run by itself
    assert page.locator("#verdict").is_hidden() and page.locator(".tokens .tok").count() == 0, (
        "nor is another run shown"
    )


def test_a_run_is_kept_in_the_address_and_in_the_strip_and_a_long_prompt_is_left_out(visit):
    page = visit()
    strip = page.locator("#runs")
    assert strip.is_hidden()
    run(page, "echo A first prompt", 8)
    first = saved(page)
    query = parse_qs(urlsplit(page.url).query)
    assert query["prompt"] == ["echo A first prompt"] and query["__theme"] == ["light"]
    run(page, "word " * 2000, 16)
    page.wait_for_function("!new URLSearchParams(location.search).has('prompt')")
    assert "prompt=" not in copied(page, "link", "copied without the prompt")

    strip.get_by_role("radio").nth(1).wait_for()
    assert strip.get_by_role("radio").nth(0).is_checked()
    assert violations(page, "#runs") == []
    strip.locator("label").nth(1).click()
    wait_for_prompt(page, "echo A first prompt")
    for index, lane in enumerate(first.lanes):
        assert shown(page, index) == recorded(lane)
    assert page.get_by_label("number input for Max new tokens").input_value() == "8"
    saved(page, lambda it: it == first)


def test_what_an_address_gets_wrong_is_said_and_not_used(visit):
    page = visit(query="&pair=%3Cb%3Enobody&temperature=hot&prompt=Hello")
    page.get_by_text("Ignored in this link").wait_for()
    assert "Models ('<b>nobody'), Temperature ('hot')" in page.get_by_text("Ignored in this link").inner_text()
    wait_for_prompt(page, "Hello")
    advanced(page)
    assert page.get_by_label("number input for Temperature").input_value() == "0"


def test_nothing_can_be_shared_before_a_run_has_ended(user, held):
    opens = user.get_by_role("button", name="Share")
    assert opens.is_enabled(), "a trace that was opened"
    ask(user, "Compare TCP and UDP.", 32)
    start(user)
    assert opens.is_disabled()
    held.set()
    finish(user)
    user.locator("#share .opens:enabled").wait_for()
    ask(user, "", 32)
    user.locator("#run").click()
    user.get_by_text("The prompt is empty").wait_for()
    user.locator("#share .opens:enabled").wait_for()


def test_the_menu_shares_the_run_that_is_shown(user):
    page = user
    assert copied(page, "markdown").startswith("|  | Standard | "), "of a trace that was opened"
    page.get_by_role("button", name="Share").click()
    assert violations(page, "#share-menu") == []
    page.keyboard.press("Escape")
    assert page.locator("#share-menu").is_hidden()
    run(page, "Compare TCP and UDP.")

    text = copied(page, "markdown")
    assert text.startswith("|  | Standard | ") and "python -m playground compare --pair fake" in text

    page.evaluate(NOTE_TEXTS)
    with page.expect_download() as download:
        share(page, "picture")
    assert download.value.suggested_filename.endswith(".png")
    data = Path(download.value.path()).read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 630)
    for (y, _, right, text), (beside, left, _, more) in pairwise(sorted(page.evaluate("globalThis.written"))):
        assert y < beside or right <= left, f"{more!r} is printed over {text!r}"

    with page.expect_download() as download:
        share(page, "file")
    assert download.value.suggested_filename.endswith(".html")
    comparison = saved(page)
    assert Path(download.value.path()).read_text(encoding="utf-8") == replay_file.build(comparison)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_file_replays_from_disk_without_a_network(chromium, tmp_path, scheme):
    comparison = hostile()
    path = tmp_path / "shared.html"
    path.write_text(replay_file.build(comparison), encoding="utf-8")
    context = chromium.new_context(offline=True, color_scheme=scheme, viewport={"width": 390, "height": 844})
    page = context.new_page()
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.goto(path.as_uri())
    page.locator("#verdict .figure", has_text="×").wait_for()
    assert page.evaluate("document.documentElement.classList.contains('dark')") == (scheme == "dark")
    assert page.locator("#prompt").evaluate("node => node.textContent") == HOSTILE
    page.keyboard.press("Escape")  # which ends the replay that began by itself
    page.locator(".replay .play", has_text="Play").wait_for()
    for index, lane in enumerate(comparison.lanes):
        page.locator("[role=tab]").nth(index).click()
        panel = page.locator(".lane").nth(index).locator(".tokens")
        assert HOSTILE in panel.evaluate("panel => panel.textContent")
        assert panel.locator("img, script").count() == 0 and lane.rounds
    page.get_by_label("Time of the replay").press("ArrowLeft")
    count = len(comparison.lanes[1].rounds)
    page.locator(".round-panel .which", has_text=f"round {count - 1} of {count}").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    assert export.load(Path(download.value.path()).read_bytes()) == comparison
    context.close()
    assert requests == [path.as_uri()] and errors == []


@pytest.mark.slow
def test_a_link_to_a_run_opens_that_run_alone_for_whoever_has_it(public, chromium):
    address, history = public
    mine, theirs = chromium.new_context(), chromium.new_context()
    for context in (mine, theirs):
        context.set_default_timeout(120_000)
    page = mine.new_page()
    page.goto(address)
    page.locator("#model", has_text="is ready").wait_for()
    run(page, "echo Not to be read by others", 8)
    page.wait_for_function("new URLSearchParams(location.search).has('id')")  # it is kept
    own = page.url
    run(page, "echo Shared with a friend", 12)
    figure = page.locator("#verdict .figure").inner_text()
    link = copied(page, "run")
    frame = copied(page, "frame")
    assert list(parse_qs(urlsplit(link).query)) == ["shared"]
    assert frame.startswith("<iframe ") and f'src="{link.replace("&", "&amp;")}&amp;embed"' in frame

    friend = theirs.new_page()
    friend.goto(link)
    friend.locator("#banner", has_text="Opened from a link").wait_for()
    assert friend.locator("#verdict .figure").inner_text() == figure
    wait_for_prompt(friend, "echo Shared with a friend")
    friend.goto(f"{link}&embed")
    friend.locator("#banner", has_text="Opened from a link").wait_for()
    assert friend.locator("#run").is_hidden() and friend.locator("#stage").is_visible()
    assert friend.locator("#prompt textarea").input_value() == "echo Shared with a friend"
    friend.locator(".round.future").first.wait_for(state="attached")  # it plays by itself
    assert friend.locator("#rooms a.brand").get_attribute("href") == link

    name = parse_qs(urlsplit(link).query)["shared"][0]
    history.clear(history.shared(name).owner)  # as when its day is over
    guessed = f"{address}?shared={'0' * 32}"
    for gone in (link, guessed, own):
        friend.goto(gone)
        friend.get_by_text("private or deleted").wait_for()
        assert friend.locator("#verdict").is_hidden() and friend.locator(".tokens .tok").count() == 0, "no other run"
        assert "Not to be read" not in friend.content()
    friend.goto(f"{address}history")
    friend.locator("#history", has_text="Nothing was run yet").wait_for()
    mine.close()
    theirs.close()


def test_in_a_frame_nothing_can_be_run_and_each_button_has_one_line(visit):
    page = visit(width=900, motion=True, query="&embed")
    play = page.locator(".replay .play", has_text="Pause")
    play.wait_for()
    assert page.locator(":is(#run, #share, .measure):visible").count() == 0
    lines = "it => { const all = new Range(); all.selectNodeContents(it); return all.getClientRects().length; }"
    assert play.evaluate(lines) == 1


def test_the_replay_is_saved_as_an_animated_picture(reader):
    open_trace(reader, json.dumps(export.to_json(fakes.comparison(tokens=24))))
    with reader.expect_download() as download:
        share(reader, "animation")
    data = Path(download.value.path()).read_bytes()
    assert download.value.suggested_filename == "replay.gif" and data.startswith(b"GIF89a")


def test_an_opened_trace_fills_the_controls(reader):
    page = reader
    comparison = fakes.comparison(tokens=24, temperature=0.5, system="Be brief.")
    open_trace(page, json.dumps(export.to_json(comparison)))
    page.locator("#banner", has_text="Opened from a file: run at 2026-01-01").wait_for()
    wait_for_prompt(page, "Compare TCP and UDP.")
    advanced(page)
    assert page.get_by_label("number input for Temperature").input_value() == "0.5"
    assert page.locator("#runs").is_hidden(), "it was not run here"
    page.locator("#more > button").click()


def test_a_link_to_the_page_is_shown_with_its_own_words_and_picture(url):
    text = httpx.get(url).text
    assert text.count('property="og:title"') == 1
    assert '<meta property="og:title" content="Speculative Decoding Playground" />' in text
    assert "twitter:creator" not in text and "Click to try out" not in text
    picture = httpx.get(re.search(r'property="og:image" content="([^"]+)"', text)[1])
    assert picture.is_success and picture.headers["content-type"] == "image/png"


def test_behind_a_proxy_a_preview_names_the_address_that_its_readers_have(public):
    sent = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "play.example"}
    for name, value in (("og:url", "https://play.example/"), ("og:image", "https://play.example/screenshot.png")):
        assert f'<meta property="{name}" content="{value}" />' in httpx.get(public[0], headers=sent).text
    alone = httpx.get(f"{public[0]}best", headers={"X-Forwarded-Proto": "https"}).text  # as on a Space
    assert f'property="og:url" content="{public[0].replace("http:", "https:")}best"' in alone


def test_a_link_to_a_run_is_shown_with_its_title_and_its_picture_and_markup_stays_text(public):
    address, history = public
    comparison = fakes.comparison(tokens=24, prompt='<b>"mine"</b> \\1')
    kept = session.keep(history, comparison, "Prompt lookup", "somebody")
    own = f"{address}?shared={history.share(kept, 'somebody')}"
    text = httpx.get(own).text
    assert f'property="og:url" content="{own}"' in text, "sites show what is at this address"
    title = re.search(r'property="og:title" content="([^"]+)"', text)[1]
    assert "Prompt lookup" in title and '<b>"mine"</b> \\1' in html.unescape(title)
    assert "<b>" not in title and f"<title>{title}</title>" in text
    link = html.unescape(re.search(r'property="og:image" content="([^"]+)"', text)[1])
    picture, usual = httpx.get(link), httpx.get(link.partition("?")[0])
    assert picture.headers["content-type"] == "image/png" and picture.content != usual.content
    for query in (f"id={kept}", "shared=unknown"):  # nobody else may open these
        text = httpx.get(f"{address}?{query}").text
        assert '<meta property="og:title" content="Speculative Decoding Playground" />' in text
        assert httpx.get(f"{address}screenshot.png?{query}").content == usual.content
