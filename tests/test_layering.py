"""Each room of the package imports only what lies below it, and only the page imports Gradio: the terminal, its files
that open offline included, works without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "playground"
ABOVE = {"ui", "hosting", "commands", "experiments", "backends", "__main__"}

# What a room may not import: rooms of the package, or libraries. A room is a folder or a module of the package.
FORBIDDEN = {
    "ui": {"commands", "__main__"},
    "commands": {"ui", "hosting", "__main__", "gradio"},
    "experiments": {"ui", "hosting", "commands", "__main__", "gradio", "plotly"},
    "backends": {"ui", "hosting", "commands", "experiments", "__main__", "gradio", "plotly"},
    "decoding": ABOVE | {"views", "gradio", "plotly", "httpx"},
    "models": ABOVE | {"decoding", "views", "gradio", "plotly"},
    "views": ABOVE | {"decoding", "models", "gradio", "torch", "transformers"},
    "hosting": {"ui", "commands", "plotly", "torch", "__main__"},
    "metrics": ABOVE | {"decoding", "models", "views", "theory", "gradio", "plotly", "torch", "transformers"},
    "theory": ABOVE | {"decoding", "models", "views", "gradio", "plotly", "torch", "transformers"},
    "trace": ABOVE | {"decoding", "models", "views", "gradio", "plotly", "torch", "transformers"},
}


@cache
def imported(file: Path) -> frozenset[str]:
    """The rooms of the package and the libraries that a file imports, at its top or in a function."""
    return frozenset(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            package, _, inside = module.partition(".")
            yield inside.split(".")[0] if package == "playground" else package


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_knows_only_what_is_below_it(room):
    files = [*(PACKAGE / room).rglob("*.py")] or [PACKAGE / f"{room}.py"]
    wrong = {str(file.relative_to(PACKAGE)): imported(file) & FORBIDDEN[room] for file in files}
    assert not {file: names for file, names in wrong.items() if names}


def test_the_package_imports_no_plugin_and_no_benchmark():
    every = {name for file in PACKAGE.rglob("*.py") for name in imported(file)}
    assert not {"playground_servers", "playground_distil", "benchmarks"} & every


def test_only_the_page_and_its_hosting_import_gradio():
    assert {file.relative_to(PACKAGE).parts[0] for file in PACKAGE.rglob("*.py") if "gradio" in imported(file)} == {
        "ui",
        "hosting",
    }


@pytest.mark.parametrize("module", ["playground.commands", "playground.views"])
def test_what_starts_quickly_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0
