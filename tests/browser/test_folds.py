"""What is unfolded under a run belongs to the run that is shown, also where another comes right then."""

from __future__ import annotations

import json

import pytest

from playground import export
from tests.browser.conftest import pause
from tests.browser.test_page import finish, open_trace
from tests.ui import fakes

pytestmark = pytest.mark.browser


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
    pause(reader, 1000)
    assert reader.locator("#why p").first.is_visible()
