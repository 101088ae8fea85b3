from __future__ import annotations

import dataclasses
from urllib.parse import parse_qsl

import pytest

from playground.presets import custom_pair
from playground.settings import SETTINGS
from playground.trace import Comparison
from playground.ui.compare.controls import OWN, CompareOptions
from playground.ui.compare.prefill import defaults, from_address, from_lane, updates
from tests.ui import fakes

OTHER = dataclasses.replace(fakes.PAIR, name="other", drafter="assistant", lookahead=9, policy="auto")
PAIRS = {"fake": fakes.PAIR, "other": OTHER}
NAMES = list(SETTINGS)


def read(query: str) -> tuple[dict, str]:
    return from_address(dict(parse_qsl(query, keep_blank_values=True)), PAIRS, fakes.PAIR)


def filled(values: dict) -> dict:
    """The controls' new values by name; those that stay are left out."""
    return {name: update["value"] for name, update in updates(values, PAIRS).items()}


def test_an_address_without_parameters_of_ours_changes_nothing():
    assert read("__theme=dark&utm_source=x") == ({}, "")
    assert filled({}) == {}


def test_a_pair_comes_with_its_own_settings_and_the_address_overrides_them():
    values, sentence = read("pair=other&lookahead=3&prompt=Hello+%26+you&temperature=0.7&chat_template=false")
    assert sentence == ""
    assert values["pair"] == "other" and values["drafter"] == "assistant"
    assert (values["lookahead"], values["policy"]) == (3, "auto")
    assert (values["prompt"], values["system"]) == ("Hello & you", "")
    assert values["temperature"] == 0.7 and values["chat_template"] is False
    assert filled(values)["lookahead"] == 3


def test_own_models_are_named():
    values, sentence = read("pair=own&target=a/b&assistant=4&drafter=early-exit")
    assert sentence == "" and values["pair"] == OWN
    assert (values["target"], values["assistant"], values["drafter"]) == ("a/b", "4", "early-exit")


@pytest.mark.parametrize(
    "wrong",
    ["pair=nobody", "drafter=tree", "temperature=hot", "temperature=nan", "lookahead=0", "policy=bold", "seed=1.5",
     "chat_template=perhaps", "max_new_tokens=", "top_k=99999999999"],
)  # fmt: skip
def test_what_cannot_be_used_is_named_and_left_out(wrong):
    values, sentence = read(f"prompt=x&{wrong}")
    assert values == {"prompt": "x", "system": ""}
    assert repr(wrong.partition("=")[2]) in sentence


def test_a_value_beyond_a_slider_becomes_its_end():
    assert filled(read("max_new_tokens=100000")[0]) == {"max_new_tokens": 2048}


def test_a_comparison_of_a_preset_fills_all_controls():
    comparison = fakes.comparison(temperature=0.5, system="Be brief.", seed=4)
    standard, assisted = comparison.lanes
    lane = dataclasses.replace(assisted.lane, drafter="assistant", assistant="fake-assistant", lookahead=11)
    comparison = Comparison((standard, dataclasses.replace(assisted, lane=lane)))
    values = from_lane(comparison.others[0], PAIRS)
    assert (values["pair"], values["drafter"], values["lookahead"]) == ("fake", "assistant", 11)
    assert (values["prompt"], values["system"], values["seed"]) == ("Compare TCP and UDP.", "Be brief.", 4)
    pair, (_, asked_lane), request = CompareOptions(filled(values)).resolve(PAIRS)
    assert (pair, request) == (fakes.PAIR, standard.request)
    assert dataclasses.replace(asked_lane, name=lane.name) == lane


def test_models_of_no_preset_are_filled_in_only_where_asked():
    pair = custom_pair("a/b", "6", "early-exit")
    standard, assisted = fakes.comparison().lanes
    weights = pair.weights_of("early-exit")
    lane = dataclasses.replace(assisted.lane, target="a/b", drafter="early-exit", assistant=weights)
    comparison = Comparison((standard, dataclasses.replace(assisted, lane=lane)))
    assert not {"pair", "target", "assistant", "drafter"} & set(from_lane(comparison.others[0], PAIRS))
    values = from_lane(comparison.others[0], PAIRS, own=True)
    assert CompareOptions(filled(values)).resolve(PAIRS)[0] == pair


def test_the_browser_knows_every_default():
    known = defaults(PAIRS)
    assert list(known["usual"]) == NAMES
    assert known["pairs"]["other"]["lookahead"] == 9 and OWN in known["pairs"]


def test_a_drafter_comes_with_the_choices_of_its_pair():
    update = updates(read("pair=other")[0], PAIRS)["drafter"]
    assert [name for _, name in update["choices"]] == ["ngram", "grammar", "assistant", "none"]
