"""Which parameters of a test run every time, and which weekly."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def selected(every: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All cases for `parametrize`: those in `quick` run every time, the others weekly."""
    every = list(every)
    assert all(case in every for case in quick), "a case that runs every time is one of all"
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=() if case in quick else pytest.mark.slow)
        for case in every
    ]
