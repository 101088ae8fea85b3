"""The experiments as other programs start them and ask for them."""

from __future__ import annotations

import gradio as gr
import pytest
from gradio.utils import get_function_description
from gradio_client import Client
from gradio_client.exceptions import AppError

from playground import results
from playground.hosting.access import FOR_VISITORS, Access
from playground.ui import page
from tests.ui import fakes

ENDPOINTS = (
    "suite",
    "sweep",
    "recommend",
    "lossless",
    "acceptance",
    "load",
    "experiment",
    "stop_experiment",
    "experiments",
)
ASKED = {"pair": "fake", "prompts": ["A prompt"], "max_new_tokens": 4}


def test_one_is_started_and_asked_for_by_its_id_and_what_cannot_be_is_refused_in_a_sentence(serve):
    client = Client(serve(fakes.Backend), verbose=False)
    started = client.predict(**ASKED, drafters=["ngram"], runs=1, api_name="/suite")
    assert started["kind"] == "suite" and "result" not in started
    ended = client.predict(started["id"], wait_s=60, api_name="/experiment")
    assert ended["status"] == "finished" and "Prompt lookup (4 ahead)" in ended["findings"][0]
    assert len(results.from_json(ended["result"]).rows) == 2
    assert [it["id"] for it in client.predict(api_name="/experiments")] == [started["id"]]
    for endpoint, changes, sentence in (
        ("suite", {"runs": 101}, "Runs must"),
        ("suite", {"pair": "none"}, "'none'"),
        ("recommend", {"prompts": ["a", " "]}, "is empty"),
        ("lossless", {"rules": ["none"]}, r"rules\[0\] should"),
        ("sweep", {"axis": "seed"}, "axis should"),
        ("sweep", {"axis": "nodes"}, "no tree"),
    ):
        with pytest.raises(AppError, match=sentence):
            client.predict(**{**ASKED, **changes}, api_name=f"/{endpoint}")
    with pytest.raises(AppError, match="'x'"):
        client.predict("x", api_name="/stop_experiment")


def test_all_parameters_are_described_and_visitors_of_a_public_link_are_refused():
    access = Access(public=True, models=(), limits=FOR_VISITORS)
    blocks = page.build(fakes.Store(), fakes.PAIRS, fakes.PAIR, (), access=access)
    calls = {it.api_name: it.fn for it in blocks.fns.values()}
    for name in ENDPOINTS:
        description, parameters, _ = get_function_description(calls[name])
        assert description and parameters and all(parameters.values())
    assert parameters.keys() == {"search"}
    _, parameters, _ = get_function_description(calls["recommend"])
    assert parameters["pair"].startswith("One of fake, large, far; ")
    for name, values in (("recommend", [None] * 8), ("experiments", [""]), ("stop_experiment", ["x"])):
        with pytest.raises(gr.Error, match="own machine"):
            calls[name](*values)
