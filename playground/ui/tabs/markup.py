"""The HTML of the tabs: progress, sentences, tables, the list of experiments. All words are escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from playground.experiments.history import Entry
from playground.ui import panels
from playground.ui.tabs import progress as words
from playground.views.suite import Table

PAGES = ("suite", "sweep", "recommend", "lossless", "load")  # kinds that have a tab
MARKS = {"running": "●", "finished": "✓", "stopped": "■", "failed": "!"}


def note(sentence: str) -> str:
    return f'<p class="empty">{escape(sentence)}</p>'


def progress(entry: Entry, left_s: float | None) -> str:
    """Title, and how far it is."""
    kind = {"running": "busy", "failed": "error"}.get(entry.status, "")
    line = panels.status(words.state(entry, left_s), kind, entry.fraction if entry.status == "running" else None)
    return f'<div data-experiment="{escape(entry.id)}"><h2>{escape(entry.title)}</h2>{line}</div>'


def findings(sentences: Sequence[str]) -> str:
    """What it found; the first sentence stands out."""
    return f'<ul class="findings">{"".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)}</ul>'


def tables(shown: Sequence[Table], opened: int = 1) -> str:
    """The first of them open, the others folded."""
    return "".join(
        f"<details{' open' if i < opened else ''}><summary>{escape(table.caption)}</summary>{_table(table)}</details>"
        for i, table in enumerate(shown)
    )


def folded(caption: str, body: str) -> str:
    """Markup under a caption, open at first."""
    return f"<details open><summary>{escape(caption)}</summary>{body}</details>"


def _table(table: Table) -> str:
    words = len(table.columns) - table.numbers
    head = "".join(_head(name, i < words) for i, name in enumerate(table.columns))
    rows = "".join(_row(row, words) for row in table.rows)
    label = escape(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _head(name: str, words: bool) -> str:
    return f'<th scope="col"{" class=word" if words else ""}>{escape(name)}</th>' if name else "<td></td>"


def _row(cells: Sequence[str], words: int) -> str:
    """`words`: how many of the first columns hold words."""
    first, *others = map(escape, cells)
    rest = "".join(f"<td{' class=word' if i < words else ''}>{cell}</td>" for i, cell in enumerate(others, start=1))
    return f'<tr><th scope="row">{first}</th>{rest}</tr>'


def history(entries: Sequence[Entry], *, searched: bool) -> str:
    """A line for each; those with a tab of their own are links to it."""
    if not entries:
        kept = "Nothing was run yet. What the other tabs find is kept here."
        return note("Nothing matches." if searched else kept)
    return f'<ul class="history">{"".join(map(_entry, entries))}</ul>'


def _entry(entry: Entry) -> str:
    title = escape(entry.title)
    name = f'<a href="{entry.kind}?id={escape(entry.id)}">{title}</a>' if entry.kind in PAGES else f"<b>{title}</b>"
    state = f"{MARKS[entry.status]} {entry.status}" + (f", {entry.fraction:.0%}" if entry.status == "running" else "")
    said = escape(entry.note) if entry.status in ("running", "failed") else ""
    return (
        f'<li class="{entry.status}">{name}<span class="chip">{state}</span><small>{escape(entry.kind)} · '
        f"{words.at(entry.created)} · {escape(entry.id)}</small><small>{said}</small></li>"
    )
