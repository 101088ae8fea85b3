"""The table of settings, and that all who have settings take them from it."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
from typing import get_args

import gradio as gr
import pytest
import torch
from transformers import GenerationConfig

from playground import export, metrics
from playground.backends.connect import connect
from playground.commands import compare
from playground.decoding.sampling import Sampler
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.kinds.options import options_of
from playground.experiments.kinds.suite import SuiteOptions
from playground.experiments.kinds.sweep import DEFAULTS
from playground.experiments.race import decode
from playground.lane import Axis, Lane, Request
from playground.models.load import sampling_defaults
from playground.presets import load_pairs
from playground.settings import SAMPLING, SETTINGS, flag
from playground.ui import page
from playground.ui.compare.controls import CompareOptions
from playground.ui.compare.prefill import from_address, from_lane, updates
from playground.validation import read
from playground.views import compared, run_details
from playground.views.comparison import repeat
from tests.backends import stand_in
from tests.ui import fakes

CPU = torch.device("cpu")
SERVERS = [
    stand_in.plain, stand_in.lm_studio, stand_in.ollama, stand_in.vllm, stand_in.sglang, stand_in.llama_server,
    stand_in.mlx_vlm,
]  # fmt: skip
PENALTIES = ("presence_penalty", "frequency_penalty")
PAIRS = {"starter": fakes.PAIR, "fake": fakes.PAIR}


@pytest.fixture(scope="module")
def blocks() -> gr.Blocks:
    return page.build(fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, ())


def test_what_can_be_swept_has_values():
    assert set(DEFAULTS) == set(get_args(Axis))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_accepts_its_default_and_its_whole_slider(name):
    setting = SETTINGS[name]
    assert setting.accepts(setting.default)
    if setting.slider:
        assert setting.accepts(setting.slider.low) and setting.accepts(setting.slider.high)
    assert setting.help and not setting.help.endswith(".")


def test_the_policy_cost_of_older_files_is_auto():
    assert read(Lane, {"name": "x", "target": "t", "policy": "cost"}).policy == "auto"


def test_the_accepted_values_are_told_in_words():
    assert SETTINGS["lookahead"].allowed == "a whole number from 1 to 64"
    assert SETTINGS["temperature"].allowed == "a number: 0 or 0.01 to 10"
    assert SETTINGS["policy"].allowed == "one of constant, heuristic, confidence, auto"
    assert SETTINGS["chat_template"].allowed == "true or false"
    assert SETTINGS["nodes"].refusal(None) == "Tree size must be a whole number from 1 to 256; it is empty."


@pytest.mark.parametrize("name", [name for name in SETTINGS if SETTINGS[name].high])
def test_numbers_outside_the_bounds_are_refused(name):
    setting = SETTINGS[name]
    assert not setting.accepts(setting.high + 1) and not setting.accepts(setting.low - 1)
    assert not setting.accepts(float("nan"))


def test_the_first_field_that_is_refused_is_named():
    with pytest.raises(PlaygroundError, match=r"Tree size .* 300\b"):
        Lane("x", "t", nodes=300)


def test_a_number_is_clipped_to_the_slider_but_zero_stays_where_it_means_something():
    temperature = SETTINGS["temperature"]
    assert [temperature.clip(value) for value in (0, 0.001, 0.7, 9)] == [0, 0.01, 0.7, 2]


BAD = "Tree size must be a whole number from 1 to 256; it is 300."


def test_a_value_is_refused_in_the_same_words_everywhere(tmp_path, capsys):
    with pytest.raises(PlaygroundError) as endpoint:
        CompareOptions({"prompt": "x", "nodes": 300}).resolve(PAIRS)
    assert str(endpoint.value) == BAD
    with pytest.raises(SystemExit):
        parsed("--nodes=300")
    assert capsys.readouterr().err.endswith(f"argument --nodes: {BAD}\n")
    preset = {"title": "T", "target": "t", "drafters": ["tree"], "drafter": "tree", "size_gb": 1, "nodes": 300}
    preset["weights"] = {"mtp": "native"}
    (tmp_path / "mine.yaml").write_text(json.dumps(preset))
    assert load_pairs(tmp_path)[1] == [f"The preset mine.yaml: nodes: {BAD}"]
    data = export.to_json(fakes.comparison())
    data["lanes"][1]["lane"]["nodes"] = 300
    with pytest.raises(PlaygroundError, match=re.escape(BAD)):
        export.from_json(data)


@pytest.mark.parametrize("name", SAMPLING)
class TestASamplingSettingIsKnownTo:
    """Each of them, so that a new one is forgotten nowhere. `value`: one that no other setting has."""

    @pytest.fixture
    def value(self, name):
        low, high, _ = SETTINGS[name].slider
        return type(SETTINGS[name].default)(low + 0.37 * (high - low))

    @pytest.fixture
    def request_(self, name, value):
        return Request("waves", **{"temperature": 1.0, "max_new_tokens": 4, name: value})

    def test_the_engine(self, name, request_):
        scores = 2 * torch.randn(1, 400, generator=torch.Generator().manual_seed(0))
        p, usual = (
            sampler.distributions(sampler.scores(scores, lambda row: [0, 1, 2])).spread(400)
            for sampler in (Sampler(it, CPU) for it in (request_, Request("waves", temperature=0.9)))
        )
        assert not torch.equal(p, usual)

    @pytest.mark.parametrize("make", SERVERS)
    def test_the_servers(self, make, name, value, request_, monkeypatch):
        with stand_in.standing_in(make(), monkeypatch) as server:
            backend = connect(stand_in.URL)
            notes = decode(backend, backend.lane(), request_, Watch()).environment.notes
        counts_prompt = make in (stand_in.llama_server, stand_in.ollama) and name in PENALTIES
        assert any("prompt's tokens" in note for note in notes) == counts_prompt
        assert any("last verify" in note for note in notes) == (make is stand_in.sglang and SETTINGS[name].greedy)
        assert any(value in body.get("options", body).values() for _, body in server.asked if body)

    def test_the_page_and_its_endpoint(self, name, blocks):
        labels = [getattr(block, "label", None) for block in blocks.blocks.values()]
        assert labels.count(SETTINGS[name].label) >= 2, "a control, and the endpoint's parameter"
        compare = next(it.fn for it in blocks.fns.values() if it.api_name == "compare")
        assert inspect.signature(compare).parameters[name].default == SETTINGS[name].default

    def test_the_experiments(self, name):
        assert name in options_of(SuiteOptions, "terminal").keys() & options_of(SuiteOptions, "endpoint").keys()

    def test_an_address(self, name, value):
        values, refused = from_address({"prompt": "x", name: str(value)}, PAIRS, fakes.PAIR)
        filled = {key: it["value"] for key, it in updates(values, PAIRS).items()}
        request = CompareOptions({**filled, "pair": "fake"}).resolve(PAIRS)[2]
        assert getattr(request, name) == value and not refused

    def test_the_terminal_and_the_command_that_repeats_a_run(self, name, value):
        assert getattr(parsed(f"{flag(name)}={value}"), name) == value
        assert f"{flag(name)}={value}" in repeat(fakes.comparison(**{name: value}), [])

    def test_a_trace_and_one_that_lacks_it(self, name, value):
        data = json.loads(json.dumps(export.to_json(fakes.comparison(**{name: value}))))
        assert getattr(export.from_json(data).standard.request, name) == value
        del data["lanes"][0]["request"][name]
        assert getattr(export.from_json(data).standard.request, name) == SETTINGS[name].default

    def test_the_details_and_the_comparison_of_two_runs(self, name, value):
        runs = [fakes.comparison(**{"temperature": 1.0, name: it}) for it in (value, SETTINGS[name].neutral)]
        assert (
            f"{SETTINGS[name].label.lower()} {value:g}"
            in dict(run_details.details(*metrics.ranked(runs[0])))["Decoding"]
        )
        assert any(str(value) in sentence for sentence in compared.side_by_side(*runs)[0])

    def test_a_checkpoint_s_defaults(self, name, value):
        own = sampling_defaults(GenerationConfig(do_sample=True, **{name: value}))
        assert own[name] == value


STOPS = "\\n\\nUser:\n end\nC:\\\\"


class TestStopStringsAreKnownTo:
    """One a line, as whoever asks writes them."""

    @pytest.fixture
    def request_(self):
        return Request("waves", max_new_tokens=4, stop_strings=STOPS)

    def test_the_request_which_refuses_what_it_cannot_read(self, request_):
        assert request_.stops == ("\n\nUser:", " end", "C:\\")
        assert Request("x", stop_strings="\n\na\na\n").stops == ("a",)
        for text, refused in (
            ("a" * 10**6, "6,416"),
            ("a" * 201, "201 characters"),
            ("\n".join(map(str, range(17))), "17 stop"),
            (r"\end", r"\e, which"),
            ("\\", "is none"),
            ("\ud800", "surrogate pair"),
        ):
            with pytest.raises(PlaygroundError, match=re.escape(refused)):
                Request("x", stop_strings=text)

    @pytest.mark.parametrize("make", SERVERS)
    def test_the_servers(self, make, request_, monkeypatch):
        with stand_in.standing_in(make(), monkeypatch) as server:
            backend = connect(stand_in.URL)
            trace = decode(backend, backend.lane(), request_, Watch())
        sent = [
            asked["stop"] for _, body in server.asked if "stop" in (asked := (body or {}).get("options", body or {}))
        ]
        said = any("no stop" in note for note in trace.environment.notes)
        assert (sent, said) == (([], True) if make is stand_in.mlx_vlm else ([[*request_.stops]], False))

    def test_the_experiments(self):
        assert SuiteOptions(prompts=("x",), stop_strings=STOPS).read()[1][0].request.stops[1] == " end"
        assert "stop_strings" in options_of(SuiteOptions, "endpoint")

    def test_an_address_the_page_and_its_endpoint(self, blocks):
        values, refused = from_address({"prompt": "x", "stop_strings": STOPS}, PAIRS, fakes.PAIR)
        filled = {key: it["value"] for key, it in updates(values, PAIRS).items()}
        assert CompareOptions({**filled, "pair": "fake"}).resolve(PAIRS)[2].stop_strings == STOPS and not refused
        labels = [getattr(block, "label", None) for block in blocks.blocks.values()]
        assert labels.count("Stop strings") >= 2, "a control, and the endpoint's parameter"

    def test_the_terminal_and_the_command_that_repeats_a_run(self):
        several = [f"--stop-strings={each}" for each in STOPS.split("\n")]
        assert parsed(*several).stop_strings == STOPS
        command = shlex.split(repeat(fakes.comparison(stop_strings=STOPS), []))
        assert parsed(*(word for word in command if word.startswith("--stop"))).stop_strings == STOPS

    def test_a_trace_the_details_and_the_comparison_of_two_runs(self):
        run = fakes.comparison(stop_strings=STOPS)
        data = json.loads(json.dumps(export.to_json(run)))
        opened = export.from_json(data)
        assert opened == run and from_lane(opened.others[0], PAIRS)["stop_strings"] == STOPS
        assert dict(run_details.details(*metrics.ranked(run)))["Stop strings"] == r'"\n\nUser:", " end", "C:\\"'
        assert any(said.startswith("Stop strings: ") for said in compared.side_by_side(run, fakes.comparison())[0])
        del data["lanes"][0]["request"]["stop_strings"]
        assert export.from_json(data).standard.request.stops == ()


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compare.add(parser.add_subparsers())
    return parser.parse_args(["compare", "--prompt=x", *options])
