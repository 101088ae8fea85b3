"""The documentation as a page: README.md and the files of docs/, one at a time."""

from __future__ import annotations

import re

import gradio as gr

from playground import ROOT
from playground.presets import DOCUMENTS
from playground.ui.wiring import PRIVATE

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.S)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")
LINK = re.compile(r"\]\((?:\.\./|docs/)?([\w-]+)\.md(#[\w-]+)?\)")
ELSEWHERE = re.compile(r"\[((?:[^\[\]]|`[^`]*`)+)\]\((?!https?:|#|docs\?)[^)]*\)")  # to a file that is not served

NAMES = {path.rpartition("/")[2].removesuffix(".md"): path for path in DOCUMENTS}
HOME = "README"


def build(page: gr.Blocks) -> None:
    links = " · ".join(f"[{name.replace('-', ' ')}](docs?page={name})" for name in NAMES)
    gr.Markdown(links, elem_id="documents")
    shown = gr.Markdown(text(HOME), elem_id="document")

    def read(request: gr.Request) -> str:
        return text(request.query_params.get("page", HOME))

    page.load(read, None, shown, **PRIVATE)


def text(name: str) -> str:
    """A document as Markdown whose links lead to others of them; the README for a name that there is not."""
    path = ROOT / NAMES.get(name, NAMES[HOME])
    body = PICTURE.sub("", FRONT_MATTER.sub("", path.read_text(encoding="utf-8")))
    return ELSEWHERE.sub(r"\1", LINK.sub(_link, body))


def _link(found: re.Match[str]) -> str:
    name, place = found[1], found[2] or ""
    return f"](docs?page={name}{place})" if name in NAMES else found[0]
