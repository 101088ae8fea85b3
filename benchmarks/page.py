"""Measures the cost of the page: the same request through the running page and headless, in turn.

The page is watched in two ways: by a reader that takes its stream as a browser on another machine would, and by a real
browser on the same cores, whose own work then slows the decoding too. All run in one `app.py` process on the same
weights; the headless side is its /compare endpoint, which streams to nobody. The browser needs playwright and a
Chromium (tests/requirements.txt).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from playground import export, metrics
from playground.errors import PlaygroundError, check
from playground.presets import Pair
from playground.settings import SETTINGS
from playground.trace import Comparison, Round, Trace

CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first has no window
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
PROMPT = "Count from 1 to 500 in words, one number per line, and do not stop before you are done."
EDGE = 200  # tokens at the start and at the end of a long run whose speed is compared
STARTS_WITHIN_S = 120


def page_against_headless(pair: Pair, runs: int, max_new_tokens: int) -> dict[str, list[float]]:
    """Returns ratios of tokens per second, page ÷ headless, by their names: each lane as a whole, and the first and
    last tokens of the standard lane if it is long enough."""
    ratios: dict[str, list[float]] = {}
    with _server(pair) as url:
        headless = partial(_headless, _client(url), pair, max_new_tokens)
        reader = partial(read_stream, url, PROMPT, max_new_tokens)
        _interleave(ratios, "a reader elsewhere", reader, headless, runs)
        with _browser(url) as page:
            _interleave(ratios, "a browser on the same cores", partial(_run_page, page, max_new_tokens), headless, runs)
    return ratios


def _interleave(
    ratios: dict[str, list[float]],
    watcher: str,
    ours: Callable[[], Comparison],
    headless: Callable[[], Comparison],
    n: int,
) -> None:
    """Adds n pairs of runs to `ratios`; an additional first pair warms up."""
    for i in range(n + 1):
        watched, alone = _speeds(ours()), _speeds(headless())
        if i:
            for name, speed in watched.items():
                ratios.setdefault(f"{name}, page with {watcher}", []).append(speed / alone[name])


def seconds_to_answer(pair: Pair) -> float:
    """Returns the seconds from starting `python app.py` to its first answer; the weights are in the cache."""
    start = time.perf_counter()
    with _server(pair):
        return time.perf_counter() - start


def _speeds(comparison: Comparison) -> dict[str, float]:
    standard, assisted = comparison.lanes
    speeds = {
        "standard lane": _tokens_per_s(standard),
        "assisted lane": _tokens_per_s(assisted),
    }
    if len(standard.rounds) >= 2 * EDGE:
        speeds[f"first {EDGE} tokens"] = _speed(standard.rounds[1 : EDGE + 1])
        speeds[f"last {EDGE} tokens"] = _speed(standard.rounds[-EDGE:])
    return speeds


def _tokens_per_s(lane: Trace) -> float:
    speed = metrics.measure(lane).tokens_per_s
    assert speed is not None, "PROMPT has a long answer"
    return speed


def _speed(rounds: tuple[Round, ...]) -> float:
    return len(rounds) / (rounds[-1].end_s - rounds[0].start_s)


def _headless(client: Any, pair: Pair, max_new_tokens: int) -> Comparison:
    return export.from_json(client.predict(PROMPT, pair.name, max_new_tokens=max_new_tokens, api_name="/compare"))


def read_stream(url: str, prompt: str, max_new_tokens: int) -> Comparison:
    """Acts like the Run button without a browser: reads the stream, discards it, and saves and fetches the trace. All
    other settings are those with which the page opens."""
    session = uuid.uuid4().hex
    asked = {SETTINGS["prompt"].label: prompt, SETTINGS["max_new_tokens"].label: max_new_tokens}
    _call(url, session, "stream", asked)
    _call(url, session, "finish", {})
    outputs = _call(url, session, "save", {})
    saved = next(output["value"]["url"] for output in outputs if isinstance(output, dict) and _is_file(output))
    return export.load(httpx.get(saved).content)


def _is_file(update: dict) -> bool:
    value = update.get("value")
    return isinstance(value, dict) and str(value.get("url", "")).endswith(".json")


def _call(url: str, session: str, name: str, changed: dict[str, Any]) -> list[Any]:
    """Calls one of the page's own events like the page's script, with some of the controls changed, by their labels.
    Returns its last outputs."""
    config = httpx.get(f"{url}/config").json()
    events = config["dependencies"]
    event = next(it for it in events if it["api_name"] == name)
    # The browser gathers the values of many controls into the first input of `stream`; the other is the tab's name.
    gathered = event["inputs"][:1] if name == "stream" else None
    gathers = next((it for it in events if it["js"] and it["outputs"][:1] == gathered), None)
    props = {component["id"]: component["props"] for component in config["components"]}
    controls = [props[control] for control in (gathers or event)["inputs"]]
    values = [changed.get(control.get("label"), control.get("value")) for control in controls]
    data = [values, ""] if gathers else values
    body = {"data": data, "fn_index": event["id"], "session_hash": session}
    httpx.post(f"{url}/gradio_api/queue/join", json=body).raise_for_status()
    stream = httpx.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}, timeout=None)
    with stream as response:
        for line in response.iter_lines():
            if '"process_completed"' in line:
                output = json.loads(line.removeprefix("data:"))["output"]
                check("data" in output, f"The page's event {name} failed: {output.get('error')}")
                return output["data"]
    raise PlaygroundError(f"The page's event {name} did not end.")


def _run_page(page: Any, max_new_tokens: int) -> Comparison:
    """Presses Run and reads the trace that the page offers to save."""
    page.locator("#prompt textarea").fill(PROMPT)
    limit = page.get_by_label("number input for Max new tokens")
    if not limit.is_visible():
        page.locator("#more > button").click()
        limit.wait_for()
        page.wait_for_timeout(1000)  # text that is typed while the settings unfold is lost
    limit.fill(str(max_new_tokens))
    limit.press("Tab")
    page.locator("#run").click()
    page.locator("#stop:not([disabled])").wait_for()
    page.locator("#run:not([disabled])").wait_for(timeout=1_800_000)
    with page.expect_download() as download:
        page.locator("#save").click()
    page.keyboard.press("Escape")  # ends the replay, which would slow the next run
    return export.load(Path(download.value.path()).read_bytes())


@contextmanager
def _server(pair: Pair) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "playground", "app", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--pair", pair.name]
    environment = os.environ | {"GRADIO_ANALYTICS_ENABLED": "False"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(url, server)
        yield url
    finally:
        server.terminate()
        server.wait()


def _wait_for(url: str, server: subprocess.Popen) -> None:
    for _ in range(STARTS_WITHIN_S * 20):
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.05)
    raise PlaygroundError("The page did not start. Run `python -m playground app` to see why.")


@contextmanager
def _browser(url: str) -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise PlaygroundError(
            "The benchmark of the page needs playwright: pip install -r tests/requirements.txt"
        ) from None
    chromium = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if chromium is None:
        raise PlaygroundError("The benchmark of the page needs a Chromium on the PATH.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.locator("#model", has_text="is ready").wait_for(timeout=STARTS_WITHIN_S * 1000)
        yield page
        browser.close()


def _client(url: str) -> Any:
    from gradio_client import Client

    return Client(url, verbose=False)
