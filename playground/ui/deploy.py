"""Settings to deploy, ready to paste: a block with a copy button for each engine that can decode so."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from playground.views import engines
from playground.views.engines import Settings


def blocks(found: Sequence[Settings]) -> str:
    """Those that cannot decode this way say why, at the end."""
    able = [_engine(it.engine, it.written_for, it.text, it.note) for it in found if it.text]
    reasons = dict.fromkeys(it.note for it in found if not it.text)
    unable = [
        _engine(", ".join(it.engine for it in found if it.note == note and not it.text), "", "", note)
        for note in reasons
    ]
    return f'<div class="deploy">{"".join([*able, *unable])}</div>'


def first(found: Sequence[Settings]) -> str:
    """The one to show under a verdict; "" where there is none."""
    it = engines.first(found)
    return f'<div class="deploy">{_engine(f"In {it.engine}", it.written_for, it.text, it.note)}</div>' if it else ""


def _engine(name: str, written_for: str, text: str, note: str) -> str:
    name = escape(name)
    head = f"<h3>{name} <small>{escape(written_for)}</small></h3>"
    said = f"<p>{escape(note)}</p>" if note else ""
    if not text:
        return f"<section>{head}{said}</section>"
    # page.js copies what stands in the section's block.
    copy = (
        f'<span class="said" role="status"></span>'
        f'<button type="button" class="copy" aria-label="Copy the settings of {name}">Copy</button>'
    )
    block = f'<pre tabindex="0" role="region" aria-label="Settings of {name}">{escape(text)}</pre>'
    return f"<section><header>{head}{copy}</header>{said}{block}</section>"
