"""Numbers in words, for whoever shows one."""

from __future__ import annotations


def gigabytes(size: float) -> str:
    """Such as "2.4 GB" or "82 GB"."""
    return f"{size / 1e9:.{1 if size < 9.95e9 else 0}f} GB"
