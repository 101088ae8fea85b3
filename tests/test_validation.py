from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from playground.errors import PlaygroundError
from playground.validation import read


@dataclass(frozen=True)
class Wheel:
    size: float
    name: str = ""


@dataclass(frozen=True)
class Car:
    wheels: tuple[Wheel, ...]
    fuel: Literal["petrol", "none"] = "none"
    seats: int | None = None
    tags: Mapping[str, str | int] = field(default_factory=dict)
    spare: Wheel | None = None


GOOD = {"wheels": [{"size": 1}], "tags": {"maker": "x", "year": 4}, "spare": {"size": 2.5}}


def test_lists_become_tuples_and_whole_numbers_floats():
    car = read(Car, GOOD)
    assert car == Car((Wheel(1.0),), tags={"maker": "x", "year": 4}, spare=Wheel(2.5))
    assert type(car.wheels[0].size) is float
    assert read(tuple[Wheel, ...], GOOD["wheels"]) == car.wheels


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"wheels": 3}, "wheels should be a list; it is 3."),
        ({"wheels": [{"size": "1"}]}, "wheels[0].size should be a number; it is '1'."),
        ({"wheels": [{"size": 1, "name": None}]}, "wheels[0].name should be text; it is empty."),
        ({"wheels": [{"name": "a"}]}, "wheels[0].size should be there, and is missing."),
        ({"wheels": [{"size": 1}, "b"]}, "wheels[1] should be keys with values; it is 'b'."),
        ({"wheels": [{"size": 1, "hue": 2}]}, "wheels[0].hue should be one of the known keys: size, name."),
        ({"spare": {"size": 1, "hue": 2}}, "spare.hue should be one of the known keys: size, name."),
        ({"colour": "red"}, "colour should be one of the known keys: wheels, fuel, seats, tags, spare."),
        ({"fuel": "tea"}, "fuel should be one of petrol, none; it is 'tea'."),
        ({"seats": True}, "seats should be a whole number; it is true."),
        ({"seats": 1.5}, "seats should be a whole number; it is 1.5."),
        ({"tags": {"maker": [1]}}, "tags.maker should be text or a whole number; it is a list."),
        ({"tags": {"maker": "\ud800"}}, "should be valid Unicode"),
        ({"wheels": [{"size": float("nan")}]}, "should be made of text, finite numbers"),
        ({"fuel": datetime.date(2026, 1, 1)}, "should be made of text, finite numbers"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path_and_what_was_expected(changes, expected):
    with pytest.raises(PlaygroundError) as error:
        read(Car, {**GOOD, **changes})
    assert expected in str(error.value)


def test_a_path_begins_where_the_data_stands_in_its_file():
    with pytest.raises(PlaygroundError, match=r"^lanes\[0\]\.wheels should"):
        read(Car, {**GOOD, "wheels": 3}, where="lanes[0]")
    with pytest.raises(PlaygroundError, match=r"^lanes\[0\]\[1\]\.size should"):
        read(tuple[Wheel, ...], [{"size": 1}, {}], where="lanes[0]")
    with pytest.raises(PlaygroundError, match=r"^the file "):
        read(Car, [])


def test_a_long_value_is_shortened():
    with pytest.raises(PlaygroundError) as error:
        read(Car, {**GOOD, "seats": "many " * 100})
    assert len(str(error.value)) < 90


def test_unknown_keys_can_be_ignored():
    assert read(Wheel, {"size": 1, "hue": 2}, extra="ignore") == Wheel(1.0)


def test_a_list_that_holds_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(PlaygroundError, match="made of"):
        read(Car, endless)
