"""Progress reports of operations that take more than a second."""

from __future__ import annotations

from dataclasses import dataclass


def of_bytes(done: float, total: float) -> str:
    """Return the progress of a download, such as "1.2 of 2.4 GB"."""
    unit, size, digits = ("GB", 1e9, 1) if total >= 1e9 else ("MB", 1e6, 0)
    return f"{done / size:.{digits}f} of {total / size:.{digits}f} {unit}"


@dataclass(frozen=True)
class Progress:
    """The progress of an operation. `fraction` runs from 0 to 1; None where the end is not known."""

    label: str
    fraction: float | None = None
