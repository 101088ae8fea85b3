"""The page's scripts and style sheets: ES modules of `assets`, joined for places that cannot import.

Gradio takes the body of a function (`js_on_load`) or an expression (`js=`), and the saved HTML file has no server to
import from. So a module becomes one expression, with all that it imports.
"""

from __future__ import annotations

import json
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from playground import ROOT

ASSETS = ROOT / "assets"
IMPORT = re.compile(r'^import (\{[^}]*\}) from "(\.[^"]*)";$', re.M)
TYPES = re.compile(r"^ */\*\*(?:(?!\*/).)*\*/\n", re.M | re.S)  # comments on lines of their own, for readers and tsc
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.M)


@cache
def bundle(name: str) -> str:
    """Return a JavaScript expression whose value holds the exports of a module by their names.

    The modules are those that a browser would load, each evaluated once, in the order of their imports. It supports
    only the two forms that our modules use: `import { a, b } from "./c.js";` on lines of its own, and `export` before
    the declaration of one function, class or constant.

    Args:
        name: its path below `assets`.

    Raises:
        graphlib.CycleError: modules import each other.
    """
    sources: dict[Path, str] = {}
    imports: dict[Path, list[Path]] = {}
    waiting = [ASSETS / name]
    while waiting:
        path = waiting.pop()
        if path in sources:
            continue
        sources[path] = path.read_text(encoding="utf-8")
        imports[path] = [_imported(path, found) for _, found in IMPORT.findall(sources[path])]
        waiting += imports[path]
    modules = "\n".join(_module(path, sources[path]) for path in TopologicalSorter(imports).static_order())
    return f'(() => {{\n"use strict";\nconst modules = {{}};\n{modules}\nreturn {_place(ASSETS / name)};\n}})()'


def component(name: str, function: str) -> str:
    """Return a module for Gradio's HTML component: `function` gets what the component passes to its script."""
    return f"{bundle(name)}.{function}({{ element, props, watch, trigger }});"


def embedded(data: Any) -> str:
    """Return JSON that is safe inside a script element: without "<" it can neither end the element nor open a
    comment."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def styles() -> list[Path]:
    """Return the style sheets in order."""
    return [ASSETS / "page.css", *sorted((ASSETS / "css").glob("*.css"))]


def _module(path: Path, source: str) -> str:
    """Return a module as a function with its own scope, which stores its exports in `modules`."""
    body = IMPORT.sub(lambda found: f"const {found[1]} = {_place(_imported(path, found[2]))};", TYPES.sub("", source))
    exports = ", ".join(EXPORT.findall(source))
    return f"{_place(path)} = (() => {{\n{EXPORT.sub('', body)}\nreturn {{ {exports} }};\n}})();"


def _place(path: Path) -> str:
    return f'modules["{path.relative_to(ASSETS).as_posix()}"]'


def _imported(by: Path, name: str) -> Path:
    return (by.parent / name).resolve()
