"""Steps through an async generator from a test that is not async, and reads the stage's value in what comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any


def unpacked(update: dict) -> tuple:
    """The stage of a handler's values as `Screen.value` gives it, and what is shown; None where that is not said."""
    return _unpacked(update["stage"]), update.get("shown")


def _unpacked(stage: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(stage["rest"])
    for lane, log in zip(value["lanes"], stage["logs"], strict=True):
        lane["log"] = log
    return value


def driven(updates: AsyncGenerator[dict, None] | Iterator[tuple]) -> Iterator[tuple]:
    """Its values, `unpacked`; between two steps it pauses. What is driven already stays as it is."""
    return updates if isinstance(updates, Iterator) else _driven(updates)


def _driven(updates: AsyncGenerator[dict, None]) -> Iterator[tuple]:
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                update = loop.run_until_complete(anext(updates))
            except StopAsyncIteration:
                return
            yield unpacked(update)
    finally:
        loop.run_until_complete(updates.aclose())
        loop.close()
