"""Steps through an async generator from a test that is not async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar

T = TypeVar("T")


def driven(updates: AsyncGenerator[T, None] | Iterator[T]) -> Iterator[T]:
    """Its values; between two steps it pauses. What is driven already stays as it is."""
    return updates if isinstance(updates, Iterator) else _driven(updates)


def _driven(updates: AsyncGenerator[T, None]) -> Iterator[T]:
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                update = loop.run_until_complete(anext(updates))
            except StopAsyncIteration:
                return
            yield update
    finally:
        loop.run_until_complete(updates.aclose())
        loop.close()
