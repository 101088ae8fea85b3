"""Numbers as text. An unknown number is a dash."""

from __future__ import annotations

UNKNOWN = "–"
NO_DIFFERENCE = "no difference seen"  # where the interval of a speed-up includes 1


def number(value: float | None, digits: int = 2) -> str:
    """Format a number, such as "1,234.50"."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share of 1, such as "67%"."""
    return UNKNOWN if share is None else f"{share:.{digits}%}"


def seconds(value: float | None) -> str:
    """Format seconds, such as "1.25 s"."""
    return UNKNOWN if value is None else f"{value:,.2f} s"


def milliseconds(value_s: float | None) -> str:
    """Format seconds in milliseconds, such as "250 ms"."""
    return UNKNOWN if value_s is None else f"{1000 * value_s:,.0f} ms"


def duration(value_s: float) -> str:
    """Format an estimate in seconds, such as "40 s" or "4 min"."""
    return f"{value_s:.0f} s" if value_s < 90 else f"{value_s / 60:.0f} min"


def ratio(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Format a speed-up, with its interval where there is one, such as "1.85× (1.72 to 1.98)"."""
    return f"{value:.2f}×{bracketed(interval)}" if value else UNKNOWN


def bracketed(interval: tuple[float, float] | None) -> str:
    """Format an interval to follow its figure, such as " (1.72 to 1.98)"; "" without one."""
    return f" ({span(*interval)})" if interval else ""


def span(low: float, high: float) -> str:
    """Format an interval, such as "1.72 to 1.98"."""
    return f"{low:.2f} to {high:.2f}"


def count(n: int, noun: str, plural: str = "") -> str:
    """Format a number of things, such as "1 token" or "1,200 tokens"."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def beginning(text: str, most: int) -> str:
    """Return the text on one line, or as many of its first words as `most` characters hold; a longer word is cut."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    words, _, _ = line[:most].rpartition(" ")
    return f"{words or line[: most - 1]} …"


def gigabytes(size: float) -> str:
    """Format bytes in GB of 1e9, such as "2.4 GB" or "82 GB"."""
    return f"{size / 1e9:.{1 if size < 9.95e9 else 0}f} GB"


def megabytes(size: float | None, digits: int = 0) -> str:
    """Format bytes in MB of 1e6, such as "310 MB"; 0 is a dash, too."""
    return f"{number(size / 1e6, digits)} MB" if size else UNKNOWN
