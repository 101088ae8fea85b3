"""What the page costs: the same request through the running page, driven in a real browser, and headless, in turn.

Both run in one `app.py` process on the same weights; the headless side is its /compare endpoint, which streams to
nobody. Needs playwright and a Chromium (tests/requirements.txt).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playground import export, metrics
from playground.errors import PlaygroundError
from playground.presets import Pair
from playground.trace import Comparison, Round

APP = Path(__file__).resolve().parents[2] / "app.py"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
PROMPT = "Count from 1 to 500 in words, one number per line, and do not stop before you are done."
EDGE = 200  # tokens at the start and at the end of a long run whose speed is compared
STARTS_WITHIN_S = 120


def page_against_headless(pair: Pair, runs: int, max_new_tokens: int) -> dict[str, list[float]]:
    """Ratios of tokens per second, page ÷ headless, by what they compare: each lane as a whole, and the first and the
    last tokens of the standard lane where it is long enough."""
    ratios: dict[str, list[float]] = {}
    with _server(pair) as url, _browser(url) as page:
        client = _client(url)
        for i in range(runs + 1):
            through_page = _run_page(page, max_new_tokens)
            headless = export.from_json(
                client.predict(PROMPT, pair.name, max_new_tokens=max_new_tokens, api_name="/compare")
            )
            if i == 0:
                continue  # warms both up
            for name, speed in _speeds(through_page).items():
                ratios.setdefault(name, []).append(speed / _speeds(headless)[name])
    return ratios


def seconds_to_answer(pair: Pair) -> float:
    """From starting `python app.py` to its first answer; the weights are in the cache."""
    start = time.perf_counter()
    with _server(pair):
        return time.perf_counter() - start


def _speeds(comparison: Comparison) -> dict[str, float]:
    standard, assisted = comparison.lanes
    speeds = {
        "standard lane": metrics.measure(standard).tokens_per_s,
        "assisted lane": metrics.measure(assisted).tokens_per_s,
    }
    if len(standard.rounds) >= 2 * EDGE:
        speeds[f"first {EDGE} tokens"] = _speed(standard.rounds[1 : EDGE + 1])
        speeds[f"last {EDGE} tokens"] = _speed(standard.rounds[-EDGE:])
    return speeds


def _speed(rounds: tuple[Round, ...]) -> float:
    return len(rounds) / (rounds[-1].end_s - rounds[0].start_s)


def _run_page(page: Any, max_new_tokens: int) -> Comparison:
    """Presses Run and reads the trace that the page offers to save."""
    page.locator("#prompt textarea").fill(PROMPT)
    limit = page.get_by_label("number input for Max new tokens")
    limit.fill(str(max_new_tokens))
    limit.press("Tab")
    page.locator("#run").click()
    page.locator("#stop:not([disabled])").wait_for()
    page.locator("#run:not([disabled])").wait_for(timeout=1_800_000)
    with page.expect_download() as download:
        page.locator("#save").click()
    return export.load(Path(download.value.path()).read_bytes())


@contextmanager
def _server(pair: Pair) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(APP), "--host", "127.0.0.1", "--port", str(port), "--pair", pair.name]
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
    raise PlaygroundError(f"The page did not start. Run `python {APP.name}` to see why.")


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
