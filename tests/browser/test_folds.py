"""What is unfolded under a run belongs to the run that is shown, also where another comes right then."""

from __future__ import annotations

import json

import pytest

from playground import export
from tests.browser.test_page import ask, finish, open_trace, start
from tests.ui import fakes

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_what_was_unfolded_while_a_run_went_on_shows_that_run(visit):
    page = visit()
    ask(page, "Compare TCP and UDP.", 128)
    start(page)
    for fold in ("#why", "#cost", "#deploy"):
        page.locator(f"{fold} > button").click()
        page.locator(fold, has_text="There is no comparison yet.").wait_for()
    finish(page)
    page.locator("#why .main-svg").first.wait_for()
    page.locator("#cost tbody").wait_for()
    page.locator("#deploy pre").first.wait_for()


def test_what_is_unfolded_as_soon_as_a_trace_is_shown_stays_so(reader):
    """One upload is several events of Gradio's. The server is slow to answer the second, which asks for nothing."""
    held = []

    def join(route):
        if route.request.post_data_json["data"]:
            route.continue_()
        else:
            held.append(route)

    reader.route("**/queue/join*", join)
    open_trace(reader, json.dumps(export.to_json(fakes.comparison(tokens=60))))
    finish(reader)
    reader.locator("#why > button").click()
    reader.locator("#why p").first.wait_for()
    assert held
    for route in held:
        route.continue_()
    reader.unroute_all()
    reader.wait_for_timeout(1000)
    assert reader.locator("#why p").first.is_visible()
