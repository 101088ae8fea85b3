from __future__ import annotations

import dataclasses

import pytest

from playground.errors import PlaygroundError
from playground.presets import OWN
from playground.settings import SETTINGS
from playground.ui.compare.controls import CompareOptions, drafter_choices
from tests.ui import fakes

PAIRS = {"fake": fakes.PAIR}
USUAL = {name: setting.default for name, setting in SETTINGS.items()}
ASKED = CompareOptions({**USUAL, "prompt": "A prompt", "pair": "fake", "drafter": "ngram", "max_new_tokens": 16})


def asked(**changes: object) -> CompareOptions:
    return CompareOptions({**ASKED.values, **changes})


def test_values_become_a_pair_a_lane_and_a_request():
    pair, (standard, lane), request = asked(temperature=1, lookahead=7).resolve(PAIRS)
    assert pair is fakes.PAIR and standard.drafter == "none"
    assert (lane.drafter, lane.lookahead) == ("ngram", 7)
    assert request.temperature == 1.0 and isinstance(request.temperature, float)


def test_whole_numbers_may_come_as_floats():
    _, (_, lane), request = asked(lookahead=7.0, seed=3.0).resolve(PAIRS)
    assert (lane.lookahead, request.seed) == (7, 3) and isinstance(lane.lookahead, int)


def test_own_models_make_a_pair():
    options = asked(pair=OWN, target="a/b", assistant="a/c", drafter="assistant")
    pair, (_, lane), _ = options.resolve(PAIRS)
    assert (pair.target, lane.assistant) == ("a/b", "a/c")


def test_every_drafter_of_the_pair_takes_the_settings_of_the_page():
    _, lanes, _ = asked(lookahead=7).resolve(PAIRS, every=True)
    assert [lane.drafter for lane in lanes] == ["none", "ngram", "assistant"]
    assert {lane.lookahead for lane in lanes[1:]} == {7} and len({lane.name for lane in lanes}) == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"prompt": "  "}, "The prompt is empty"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"pair": "nothing"}, "There is no pair 'nothing'"),
        ({"pair": OWN}, "No target model was named"),
        ({"drafter": "oracle"}, "no drafter 'oracle'"),
        ({"policy": "bold"}, "policy"),
        ({"seed": None}, r"Seed must be a whole number from 0 to 2\^63 - 1; it is empty"),
        ({"top_p": 0}, "Top-p must be a number from 0.001 to 1; it is 0"),
        ({"lookahead": 99}, "Lookahead"),
        (dict(prompt=None), "Prompt must be text; it is empty"),
        (dict(pair=["own"]), r"Models must be text; it is \[\'own\'\]"),
        (dict(lookahead=2.5), "Lookahead must be a whole number from 1 to 64; it is 2.5"),
        (dict(lookahead="five"), "Lookahead must be a whole number"),
        (dict(max_new_tokens=float("nan")), "Max new tokens must be a whole number"),
        (dict(temperature="hot"), "Temperature must be a number: 0 or 0.01 to 10; it is 'hot'"),
        (dict(chat_template="no"), "Chat template must be true or false"),
        (dict(seed=-5), "Seed must be"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(values, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        asked(**values).resolve(PAIRS)


def test_a_pair_offers_its_own_drafters_and_the_control_run():
    assert [name for _, name in drafter_choices(fakes.PAIR)] == ["ngram", "grammar", "assistant", "none"], "by groups"
    starter = dataclasses.replace(fakes.PAIR, drafters=("ngram",))
    assert [name for _, name in drafter_choices(starter)] == ["ngram", "grammar", "none"]
