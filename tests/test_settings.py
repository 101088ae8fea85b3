"""The table of settings, and that all who have settings take them from it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from playground.errors import PlaygroundError
from playground.lane import Lane, Request
from playground.presets import Pair
from playground.settings import SETTINGS
from playground.ui.compare.controls import Asked


@pytest.mark.parametrize("kind", [Asked, Request, Lane, Pair])
def test_defaults_and_types_are_those_of_the_table(kind):
    for field in fields(kind):
        if field.name in SETTINGS and field.default not in (None, field.default_factory) and field.name != "drafter":
            assert field.default == SETTINGS[field.name].default
            assert type(field.default) is type(SETTINGS[field.name].default)


def test_every_value_that_can_be_asked_for_is_in_the_table():
    assert {field.name for field in fields(Asked)} == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_accepts_its_default_and_its_whole_slider(name):
    setting = SETTINGS[name]
    assert setting.accepts(setting.default)
    if setting.slider:
        assert setting.accepts(setting.slider.low) and setting.accepts(setting.slider.high)
    assert setting.help and not setting.help.endswith(".")


def test_the_accepted_values_are_told_in_words():
    assert SETTINGS["lookahead"].allowed == "a whole number from 1 to 64"
    assert SETTINGS["temperature"].allowed == "a number: 0 or 0.01 to 10"
    assert SETTINGS["policy"].allowed == "one of constant, heuristic, confidence, cost"
    assert SETTINGS["chat_template"].allowed == "true or false"
    assert SETTINGS["nodes"].refusal(None) == "Tree size must be a whole number from 1 to 256; it is empty."


@pytest.mark.parametrize("name", [name for name in SETTINGS if SETTINGS[name].high])
def test_numbers_outside_the_bounds_are_refused(name):
    setting = SETTINGS[name]
    assert not setting.accepts(setting.high + 1) and not setting.accepts(-1)
    assert not setting.accepts(float("nan"))


def test_the_first_field_that_is_refused_is_named():
    with pytest.raises(PlaygroundError, match="Tree size must be a whole number from 1 to 256; it is 300"):
        Lane("x", "t", nodes=300)


def test_a_number_is_clipped_to_the_slider_but_zero_stays_where_it_means_something():
    temperature = SETTINGS["temperature"]
    assert [temperature.clip(value) for value in (0, 0.001, 0.7, 9)] == [0, 0.01, 0.7, 2]
