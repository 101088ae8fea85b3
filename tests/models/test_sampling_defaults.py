from __future__ import annotations

from dataclasses import asdict

import pytest
from transformers import GenerationConfig

from playground.lane import Request
from playground.models.load import sampling_defaults
from playground.settings import differing


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),  # without do_sample
        ({"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        ({"do_sample": True}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}),
        (
            {
                "do_sample": True,
                "temperature": 0.6,
                "top_p": 0.95,
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
            },
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1},
        ),
        (
            {"do_sample": True, "temperature": 1e-6, "top_k": 1000},
            {"temperature": 0.01, "top_p": 1.0, "top_k": 200, "min_p": 0.0},
        ),
    ],
)
def test_a_generation_config_becomes_fields_of_a_request(config, expected):
    own = sampling_defaults(GenerationConfig(**config))
    assert own == expected
    assert Request("A prompt", **own)


def test_only_settings_that_are_not_the_requests_differ():
    own = {"temperature": 0.6, "top_p": 1.0, "top_k": 0}
    assert differing(own, asdict(Request("A prompt"))) == {"temperature": 0.6}
    assert differing({}, asdict(Request("A prompt", temperature=2))) == {}
