"""Packages that add to the playground over entry points: those of the guides, and broken ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def files_of(guide: str) -> dict[str, str]:
    """The files that a guide's section on packages shows, each after a sentence that begins with its name."""
    section = guide.partition("## A package of its own\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"`([\w./]+)` [^`]*:\n\n```(?:toml|python)\n(.*?)```", section, re.DOTALL))


def installed(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes the files of a package and installs it. Returns the folder to import it from."""
    for name, text in files.items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site")]
    subprocess.run([*command, str(folder / "package")], check=True)
    return folder / "site"


def in_python(site: Path, *words: str) -> str:
    """Returns what Python prints that finds the checkout and the installed package."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    found = subprocess.run([sys.executable, *words], cwd=site, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and "Left out" not in found.stderr, found.stderr
    return found.stdout


def registered(site: Path, group: str, modules: Mapping[str, str]) -> None:
    """Writes modules, each with an entry point in the group that names its IT, as an installer would."""
    for name, text in modules.items():
        about = site / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (site / f"{name}.py").write_text(text, encoding="utf-8")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[{group}]\nit = {name}:IT\n", encoding="utf-8")
