"""Traces from files that pages show. They are kept packed, and within bounds: a small file can be long."""

from __future__ import annotations

import pickle
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gradio as gr

from playground.errors import check
from playground.trace import Comparison

GONE = "This trace is no longer kept, since many were opened. Open it again."


class Opened:
    """Those of all sessions.

    Args:
        room: bytes of all; the ones that were shown longest ago go first.
        each: how many of a visitor's are being opened, or wait for it.
    """

    def __init__(self, room: float, each: float) -> None:
        self._room, self._each = room, each
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._opening: Counter[str] = Counter()

    @contextmanager
    def opening(self, visitor: str) -> Iterator[None]:
        """Around each work on a visitor's trace.

        Raises:
            PlaygroundError: too many of the visitor's are under way.
        """
        check(
            self._opening[visitor] < self._each,
            f"{self._opening[visitor]} of your traces are being opened, the most on this server. Wait for one of them.",
        )
        self._opening[visitor] += 1
        try:
            yield
        finally:
            self._opening[visitor] -= 1
            if not self._opening[visitor]:
                del self._opening[visitor]

    def keep(self, packed: bytes) -> Held:
        """Keeps what `pickle` made of a comparison."""
        held = Held(self, secrets.token_hex(8))
        self._packed[held.key] = packed
        while sum(map(len, self._packed.values())) > self._room:
            self._packed.popitem(last=False)
        return held

    def packed(self, key: str) -> bytes:
        """Raises:
        gr.Error: it is no longer kept.
        """
        if key not in self._packed:
            raise gr.Error(GONE, print_exception=False)
        self._packed.move_to_end(key)
        return self._packed[key]


@dataclass(frozen=True)
class Held:
    """One of them, by its key."""

    of: Opened
    key: str

    @property
    def packed(self) -> bytes:
        return self.of.packed(self.key)

    @property
    def comparison(self) -> Comparison:
        return pickle.loads(self.packed)
