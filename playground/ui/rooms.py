"""The five rooms of the page with the links between them, and the documentation page.

A room has one or more pages, each with an address. The documentation is README.md and the files of docs/, one at a
time.
"""

from __future__ import annotations

import os
import re
from html import escape
from typing import NamedTuple

import gradio as gr

from playground import ROOT
from playground.experiments.kinds import KINDS
from playground.presets import DOCUMENTS
from playground.ui.wiring import PRIVATE

TITLE = "Speculative Decoding Playground"
TRY, BEST, SERVE, HISTORY, RECORDS = "Try", "Best drafter", "Serve", "History", "Records"
HOME = "./"
BEST_PAGE = "best"  # of the kinds that share it
MOVED = {  # pages of earlier versions, and what has taken their place
    "/suite": f"{BEST_PAGE}?prompts=examples",
    "/recommend": f"{BEST_PAGE}?prompts=examples&depth=sure",
    "/traffic": f"{BEST_PAGE}?prompts=logs",
}
RECORDS_PAGE = "records"
DOCS = "docs"  # a page outside the rooms


class Place(NamedTuple):
    """A page: its address, and the text of links to it."""

    path: str
    label: str


def rooms() -> dict[str, tuple[Place, ...]]:
    """Returns the pages of each room; the first one is its entry."""
    best, serve = (
        tuple(Place(kind.page, kind.label) for kind in KINDS.values() if kind.room == room and not kind.shared)
        for room in (BEST, SERVE)
    )
    return {
        TRY: (Place(HOME, "One prompt"),),
        BEST: (Place(BEST_PAGE, BEST), *best),
        SERVE: (Place("servers", "Servers"), *serve),
        HISTORY: (Place("history", "All runs"),),
        RECORDS: (Place(RECORDS_PAGE, RECORDS),),
    }


def titles() -> dict[str, str]:
    """Returns the title of each page by its path."""
    labels = {f"/{place.path}": place.label for places in rooms().values() for place in places if place.path != HOME}
    labels |= {f"/{kind.page}": kind.label for kind in KINDS.values() if not kind.shared}
    labels |= {"/history": HISTORY, f"/{DOCS}": "Docs"}
    return {"/": TITLE} | {path: f"{label} · {TITLE}" for path, label in labels.items()}


def lay_out(path: str, *, public: bool = False) -> None:
    """Lays out the links at the top of a page.

    Args:
        path: the page's address.
        public: whether strangers reach it: they have no servers and no long experiments here.
    """
    gr.HTML(markup(path, public=public), elem_id="rooms", apply_default_css=False)


def markup(path: str, *, public: bool = False) -> str:
    """Returns the title and the rooms as HTML; below them the pages of the room, if it has several."""
    every = {room: places for room, places in rooms().items() if not (public and room in (BEST, SERVE))}
    here = next((room for room, places in every.items() if path in (place.path for place in places)), "")
    links = "".join(_link(places[0].path, room, current=room == here) for room, places in every.items())
    title = f"<h1>{TITLE}</h1>" if path == HOME else f'<a class="brand" href="{HOME}">{TITLE}</a>'
    beside = _link(DOCS, "Docs", current=path == DOCS) + _of_space()
    top = f'<nav aria-label="Rooms"{" class=public" * public}>{title}<span>{links}{beside}</span></nav>'
    if here == TRY or len(every.get(here, ())) < 2:
        return top
    first, *more = (_link(it.path, it.label, current=it.path == path) for it in every[here])
    inside = first + ("<small>More experiments</small>" if here == BEST else "") + "".join(more)
    return f'{top}<nav class="depths" aria-label="{here}">{inside}</nav>'


def _link(path: str, label: str, *, current: bool) -> str:
    marked = ' aria-current="page"' if current else ""
    return f'<a href="{escape(path)}"{marked}>{escape(label)}</a>'


def home() -> str:
    """Returns the page's address for everyone: a Space's, from the environment; "" elsewhere."""
    space = os.environ.get("SPACE_ID")
    return f"https://huggingface.co/spaces/{space}" if space else ""


def _of_space() -> str:
    """Returns what leads from a Space to Hugging Face: its source, a copy of one's own, and where the GPU time is each
    visitor's, the sign-in."""
    if not home():
        return ""
    from playground.hosting import zerogpu  # which imports torch

    links = {"Source": f"{home()}/tree/main", "Duplicate": f"{home()}?duplicate=true"}
    if zerogpu.active():
        links["Sign in"] = f"https://huggingface.co/login?next=/spaces/{os.environ['SPACE_ID']}"
    return "".join(f'<a href="{escape(url)}" target="_blank">{label}</a>' for label, url in links.items())


FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.S)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")
LINK = re.compile(r"\]\((?:\.\./|docs/)?([\w-]+)\.md(#[\w-]+)?\)")
ELSEWHERE = re.compile(r"\[((?:[^\[\]]|`[^`]*`)+)\]\((?!https?:|#|docs\?)[^)]*\)")  # to a file that is not served

NAMES = {path.rpartition("/")[2].removesuffix(".md"): path for path in DOCUMENTS}
DOCS_HOME = "README"


def build(page: gr.Blocks) -> None:
    """Lays the documentation page out."""
    links = " · ".join(f"[{name.replace('-', ' ')}](docs?page={name})" for name in NAMES)
    gr.Markdown(links, elem_id="documents")
    shown = gr.Markdown(text(DOCS_HOME), elem_id="document")

    def read(request: gr.Request) -> str:
        return text(request.query_params.get("page", DOCS_HOME))

    page.load(read, None, shown, **PRIVATE)


def text(name: str) -> str:
    """Returns a document as Markdown whose links lead to the other documents; the README for an unknown name."""
    path = ROOT / NAMES.get(name, NAMES[DOCS_HOME])
    body = PICTURE.sub("", FRONT_MATTER.sub("", path.read_text(encoding="utf-8")))
    return ELSEWHERE.sub(r"\1", LINK.sub(_doc_link, body))


def _doc_link(found: re.Match[str]) -> str:
    name, place = found[1], found[2] or ""
    return f"](docs?page={name}{place})" if name in NAMES else found[0]
