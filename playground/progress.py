"""Word of something that takes more than a second, from any room to whoever watches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`fraction` runs from 0 to 1; None where the end is not known."""

    label: str
    fraction: float | None = None
