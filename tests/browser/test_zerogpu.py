"""The page under ZeroGPU's rules: no CUDA in its own process, each run in one that is forked for it."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator

import pytest

from playground.hosting import zerogpu
from playground.ui import page as playground_page
from tests.browser.test_page import ask, finish, panel, saved, start
from tests.ui import fakes, zero

pytestmark = pytest.mark.browser
PAIRS = {"fake": fakes.PAIR}


@pytest.fixture(scope="module")
def spaces() -> Iterator[zero.Spaces]:
    with pytest.MonkeyPatch.context() as patch:
        stand_in = zero.Spaces(patch)
        patch.setitem(sys.modules, "spaces", stand_in)
        patch.setenv("SPACES_ZERO_GPU", "true")  # Gradio reads it, too
        yield stand_in


@pytest.fixture(scope="module")
def url(spaces: zero.Spaces) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zerogpu, "ModelStore", fakes.Store)
        patch.setattr(zerogpu, "PAIRS", tuple(PAIRS))
        held = zerogpu.Held(PAIRS)
    elsewhere = zerogpu.ZeroGpu(held.pairs, zero.Backend)
    blocks = playground_page.build(held, held.pairs, fakes.PAIR, fakes.EXAMPLES, elsewhere=elsewhere)
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **playground_page.look())
    yield address
    blocks.close()


@pytest.mark.slow
def test_a_run_a_stop_a_refusal_and_a_closed_tab(visit, spaces):
    page = visit()
    page.set_default_timeout(120_000)  # a process is forked for each run
    ask(page, "Compare TCP and UDP.", 24)
    start(page)
    finish(page)
    assert [len(lane.tokens) for lane in saved(page).lanes] == [24, 24] and spaces.asked

    ask(page, "Compare TCP and UDP.", 2000)
    page.locator("#run").click()
    page.locator("#status", has_text="Running").wait_for()  # from here on the tokens are this run's
    panel(page, 0).locator(".tok").first.wait_for()  # a run without output has nothing to keep
    page.locator("#stop").click()
    page.locator("#run:enabled").wait_for()
    assert "Stopped after" in page.locator("#status").inner_text()
    assert saved(page).standard.finish == "stopped"

    spaces.refusal = "You have exceeded your free ZeroGPU quota (50s requested vs. 12s left). Try again in 3:20:00."
    page.locator("#run").click()
    page.locator("#status", has_text="12 s of your GPU time at Hugging Face are left").wait_for()
    spaces.refusal = ""

    page.locator("#run").click()
    page.locator("#status", has_text="Running").wait_for()
    assert multiprocessing.active_children()
    page.close()
    deadline = time.monotonic() + 120  # not joined: the thread that handles the run joins it, and one of two would fail
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not multiprocessing.active_children()
