"""The sampling settings that a checkpoint comes with, in its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from playground.settings import SAMPLING, SETTINGS


def sampling_defaults(config: GenerationConfig) -> dict[str, float]:
    """The fields of a Request that a checkpoint has defaults for, each clipped to its slider.

    Without `do_sample` it has none for sampling, as in transformers' `generate()`. With it, what it leaves out is
    neutral: temperature 1, every token.
    """
    sampled: dict[str, Any] = {
        name: SETTINGS[name].neutral for name in SAMPLING if config.do_sample and not SETTINGS[name].greedy
    }
    given = {name: getattr(config, name, None) for name in SAMPLING if name in sampled or SETTINGS[name].greedy}
    own = sampled | {name: value for name, value in given.items() if value is not None}
    return {name: SETTINGS[name].clip(value) for name, value in own.items()}


def differing(own: Mapping[str, float], asked: Mapping[str, float]) -> dict[str, float]:
    """The checkpoint's settings that are not those of the request."""
    return {name: value for name, value in own.items() if asked[name] != value}
