"""The view of a run in a chat, as a client of MCP Apps shows it: in a sandboxed frame, by messages alone."""

from __future__ import annotations

import json

import pytest

from playground.views import replay_file, stage
from tests.views.test_replay_file import HOSTILE, hostile

pytestmark = pytest.mark.browser

# What a client does, as the specification has it. `told` is what the view asked for.
CLIENT = """
<!doctype html>
<iframe sandbox="allow-scripts" style="width: 100%; height: 1200px"></iframe>
<script>
const told = [];
function show(view, answers, result) {
  const frame = document.querySelector("iframe");
  const send = (message) => frame.contentWindow.postMessage({ jsonrpc: "2.0", ...message }, "*");
  addEventListener("message", ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    told.push(data);
    if (data.id !== undefined) send({ id: data.id, ...answers[data.method] });
    if (data.method === "ui/notifications/initialized")
      send({ method: "ui/notifications/tool-result", params: result });
  });
  frame.srcdoc = view;
}
</script>
"""
HELLO = {
    "result": {
        "protocolVersion": "2026-01-26",
        "hostInfo": {"name": "chat", "version": "1"},
        "hostCapabilities": {"serverTools": {}, "openLinks": {}},
        "hostContext": {"theme": "dark", "toolInfo": {"tool": {"name": "space_watch", "inputSchema": {}}}},
    }
}
REPLAY = "http://127.0.0.1:7860/?id=0123abcd"


def text(words: str, **more: object) -> dict:
    return {"content": [{"type": "text", "text": words}], **more}


@pytest.fixture
def shown(chromium):
    """The view in a page of its client, and what it said to the client."""
    page = chromium.new_page(viewport={"width": 760, "height": 1300})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.set_content(CLIENT)

    def show(result: dict, watched: dict):
        answers = {"ui/initialize": HELLO, "tools/call": {"result": watched}, "ui/open-link": {"result": {}}}
        page.evaluate("given => show(...given)", [replay_file.in_chat(), answers, result])
        return page.frame_locator("iframe")

    yield page, show
    page.close()
    assert errors == []


def test_it_draws_the_run_that_the_tool_kept(shown):
    page, show = shown
    comparison = hostile()
    packed = stage.packed(stage.replaying(comparison).value())
    view = show(text(json.dumps({"summary": "", "replay": REPLAY})), text(json.dumps(packed)))
    view.locator("#verdict .figure", has_text="×").wait_for()
    assert view.locator("#said").is_hidden()
    assert view.locator("html").evaluate("root => root.classList.contains('dark')")
    view.get_by_role("button", name="Pause").click()
    for index in range(2):
        view.locator("[role=tab]").nth(index).click()
        panel = view.locator(".lane").nth(index).locator(".tokens")
        assert HOSTILE in panel.evaluate("panel => panel.textContent") and panel.locator("img, script").count() == 0
    view.get_by_role("link", name="Open this run").click()
    page.wait_for_function("told.some(it => it.method === 'ui/open-link')")
    asked = {it["method"]: it.get("params") for it in page.evaluate("told") if "method" in it}
    assert asked["tools/call"] == {"name": "space_watched", "arguments": {"replay": REPLAY}}
    assert asked["ui/open-link"] == {"url": REPLAY}
    page.wait_for_function("told.some(it => it.method === 'ui/notifications/size-changed' && it.params.height > 600)")


@pytest.mark.parametrize(
    ("result", "watched", "words"),
    [
        (text("There is no pair 'x'.", isError=True), {}, "There is no pair 'x'."),
        (text(json.dumps({"replay": REPLAY})), text("It may have been deleted.", isError=True), "It may have been"),
        (text(json.dumps({"replay": ""})), {}, "This run was not kept."),
    ],
    ids=["the run failed", "it is gone", "it was stopped"],
)
def test_it_says_in_words_why_there_is_no_run(shown, result, watched, words):
    _, show = shown
    view = show(result, watched)
    view.locator("#said", has_text=words).wait_for()
