"""A page that shows a training run while it runs: loss, held-out acceptance by position, time left.

The page is one HTML file without scripts that reloads itself; it is rewritten at most every EVERY seconds.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from playground.format import duration

EVERY = 5.0  # seconds between two versions of the page
POINTS = 200  # the most points of the loss curve: each is the mean of several steps
WIDTH, HEIGHT, LEFT, BELOW = 640, 220, 46, 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6100")  # Okabe and Ito; by position

Line = Sequence[tuple[float, float]]


class TrainingReport:
    """Writes the page.

    Args:
        path: the page's file.
        total: tokens to learn from in all.
        done: tokens that were learned before this process.
    """

    def __init__(self, path: Path, title: str, total: int, done: int = 0) -> None:
        self._path, self._title, self._total = path, title, total
        self._first, self._began, self._written = done, time.monotonic(), float("-inf")
        self._losses: list[tuple[float, float]] = []

    def step(self, done: int, loss: float, log: Sequence[Mapping[str, Any]]) -> None:
        """Records a step. `done`: tokens learned so far; `log`: the held-out figures so far."""
        self._losses.append((done, loss))
        if time.monotonic() - self._written > EVERY or done >= self._total:
            self._path.write_text(self._page(done, log), encoding="utf-8")
            self._written = time.monotonic()

    def _page(self, done: int, log: Sequence[Mapping[str, Any]]) -> str:
        ended = done >= self._total
        learned = max(1, done - self._first)
        left = (time.monotonic() - self._began) / learned * max(0, self._total - done)
        state = "Done." if ended else f"About {duration(left)} left."
        positions = len(log[-1]["accepted"]) if log else 0
        held_out = [[(figures["tokens"], figures["accepted"][i]) for figures in log] for i in range(positions)]
        latest = f"{log[-1]['mean_accepted_length']:.2f} tokens per pass of the target" if log else "none yet"
        again = "" if ended else '<meta http-equiv="refresh" content="5">'
        return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">{again}
<meta name="viewport" content="width=device-width"><title>{html.escape(self._title)}</title>
<style>body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 680px; margin: 24px auto; padding: 0 12px;
color-scheme: light dark; font-variant-numeric: tabular-nums }} svg {{ width: 100%; height: auto }}
text {{ font-size: 11px; fill: currentColor }} h2 {{ font-size: 15px; margin: 20px 0 4px }}</style></head><body>
<h1 style="font-size:18px">{html.escape(self._title)}</h1>
<p>{done:,} of {self._total:,} tokens. {state} Held out: {latest}.</p>
<h2>Loss</h2>{_chart([_means(self._losses)], ["mean of steps"], self._total)}
<h2>Held-out drafts accepted up to each position</h2>
{_chart(held_out, [f"position {i + 1}" for i in range(positions)], self._total, top=1.0)}
</body></html>
"""


def _means(line: Line) -> Line:
    size = -(-len(line) // POINTS)
    groups = [line[i : i + size] for i in range(0, len(line), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _chart(lines: Sequence[Line], names: Sequence[str], right: float, top: float | None = None) -> str:
    """Returns an SVG of lines over tokens, from 0 to `right` and to `top`, or the highest value; each line is labelled
    at its end."""
    high = top or max((y for line in lines for _, y in line), default=1.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - 90):.1f},{(1 - y / high) * (HEIGHT - BELOW) + 8:.1f}"

    parts = []
    for share in (0, 0.5, 1):
        x, y = at(0, share * high).split(",")
        parts.append(f'<text x="{LEFT - 6}" y="{float(y) + 4}" text-anchor="end">{share * high:.2f}</text>')
        parts.append(f'<path d="M{x},{y} H{WIDTH - 90}" stroke="currentColor" stroke-opacity=".2"/>')
    parts.append(f'<text x="{WIDTH - 90}" y="{HEIGHT + 2}" text-anchor="end">{right:,.0f} tokens</text>')
    for i, (line, name) in enumerate(zip(lines, names, strict=True)):
        if line:
            points, colour = [at(x, y) for x, y in line], COLOURS[i % len(COLOURS)]
            x, y = points[-1].split(",")
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
            label = f"{html.escape(name)} {line[-1][1]:.2f}"
            parts.append(f'<text x="{float(x) + 6}" y="{float(y) + 4}">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 8}" role="img">{"".join(parts)}</svg>'
