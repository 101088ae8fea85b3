"""The HTML of the tabs: progress, sentences, tables, the list of experiments. All words are escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from playground.experiments.history import COMPARE, Entry
from playground.ui import panels
from playground.ui.experiments.progress import at, state
from playground.views.table import Table

MARKS = {"running": "●", "finished": "✓", "stopped": "■", "failed": "!"}


def moment(seconds: float) -> str:
    """A time since 1970, which page.js shows as the reader's clock has it."""
    return f'<local-time data-s="{seconds:.0f}">{at(seconds)}</local-time>'


def note(sentence: str) -> str:
    return f'<p class="empty">{escape(sentence)}</p>'


def progress(entry: Entry, left_s: float | None) -> str:
    """Title, when it was started, and how far it is."""
    kind = {"running": "busy", "failed": "error"}.get(entry.status, "")
    line = panels.status(state(entry, left_s), kind, entry.fraction if entry.status == "running" else None)
    title = f"{escape(entry.title)} <small>{moment(entry.created)}</small>"
    return f'<div data-experiment="{escape(entry.id)}"><h2>{title}</h2>{line}</div>'


def findings(sentences: Sequence[str]) -> str:
    """What it found; the first sentence stands out."""
    return f'<ul class="findings">{"".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)}</ul>'


def tables(shown: Sequence[Table], opened: int = 1) -> str:
    """The first of them open, the others folded."""
    return "".join(
        f"<details{' open' if i < opened else ''}><summary>{escape(each.caption)}</summary>{each.html()}</details>"
        for i, each in enumerate(shown)
    )


def folded(caption: str, body: str) -> str:
    """Markup under a caption, closed at first."""
    return f"<details><summary>{escape(caption)}</summary>{body}</details>"


def history(entries: Sequence[Entry], *, searched: bool) -> str:
    """A line for each with a box to choose it; which opens on its tab."""
    if not entries:
        return note("Nothing matches." if searched else "Nothing was run yet. What you run is listed here.")
    return f'<ul class="history">{"".join(map(_entry, entries))}</ul>'


def _entry(entry: Entry) -> str:
    state = f"{MARKS[entry.status]} {entry.status}" + (f", {entry.fraction:.0%}" if entry.status == "running" else "")
    said = f"<small>{escape(entry.note)}</small>" if entry.status in ("running", "failed") else ""
    return (
        f'<li class="{entry.status}"><input type="checkbox" id="choose-{escape(entry.id)}" value="{escape(entry.id)}" '
        f'aria-label="Choose {escape(entry.title)}"><div>{_name(entry)}<span class="chip">{state}</span>'
        f"<small>{escape(entry.kind)} · {moment(entry.created)} · {escape(entry.id)}</small>{said}</div></li>"
    )


def _name(entry: Entry) -> str:
    tab, id_ = "./" if entry.kind == COMPARE else entry.kind, escape(entry.id)
    return f'<a id="open-{id_}" href="{tab}?id={id_}">{escape(entry.title)}</a>'


def side_by_side(entries: Sequence[Entry], sentences: Sequence[str], figures: Table) -> str:
    """Two entries with what was asked differently, and the figures of both."""
    named = "".join(
        f"<li>{name}: {escape(entry.title)}, {moment(entry.created)}</li>"
        for name, entry in zip(("First", "Second"), entries, strict=True)
    )
    asked = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) or "<li>Both were asked the same.</li>"
    shown = figures.html() if figures.rows else note("They have no lane in common.")
    return f'<section role="status"><h2>Side by side</h2><ul>{named}{asked}</ul>{shown}</section>'
