"""The endpoint as other programs see it."""

from __future__ import annotations

import re
import threading

from gradio.utils import get_function_description
from gradio_client import Client

from playground import export
from playground.settings import SETTINGS
from playground.ui import page
from tests.ui import fakes
from tests.ui.test_events import endless


def test_arguments_go_by_name_and_are_those_of_the_controls(serve):
    trace = Client(serve(fakes.Backend), verbose=False).predict(
        "A prompt", pair="fake", lookahead=3, max_new_tokens=5, api_name="/compare"
    )
    assert re.search(r"/\?id=[0-9a-f]{8}$", trace["replay"])
    lane = export.from_json(trace).lanes[1]
    assert (lane.lane.drafter, lane.lane.lookahead) == ("ngram", 3)
    assert lane.request.max_new_tokens == 5


def test_every_parameter_says_what_it_accepts(serve):
    page_info = Client(serve(fakes.Backend), verbose=False).view_api(return_format="dict", print_info=False)
    parameters = {it["parameter_name"]: it for it in page_info["named_endpoints"]["/compare"]["parameters"]}
    told = {name: it["python_type"]["description"] for name, it in parameters.items()}
    assert parameters["lookahead"]["label"] == "Lookahead"
    assert told["lookahead"] == "A whole number from 1 to 64; tokens drafted per round. None uses the preset's value."
    assert told["pair"].startswith("One of fake, own; ")
    assert told["drafter"].startswith("One of ngram, suffix, ")
    assert told["temperature"] == "A number: 0 or 0.01 to 10; 0 = greedy; higher = more random."
    assert set(told) == set(SETTINGS) and all(told.values())


def test_an_mcp_tool_s_parameters_are_described_too():
    blocks = page.build(fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, ())
    compare = next(it.fn for it in blocks.fns.values() if it.api_name == "compare")
    description, parameters, _ = get_function_description(compare)
    assert description.startswith("Runs a prompt ")
    assert parameters["lookahead"].lower().startswith(SETTINGS["lookahead"].allowed)
    assert all(text for name, text in parameters.items() if name != "request")


def test_a_client_that_leaves_frees_the_device(serve):
    emitted, stopped = threading.Event(), threading.Event()
    client = Client(serve(endless(emitted, stopped)), verbose=False)
    client.submit("A prompt", pair="fake", api_name="/compare")
    assert emitted.wait(60)
    assert not stopped.is_set()
    client.close()
    assert stopped.wait(60)
