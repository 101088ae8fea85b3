"""Packages as an installer would put them on a machine, without starting one: the playground's own, those of the guides
that add to it over entry points, and broken ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hatchling import build

ROOT = Path(__file__).parent.parent


def files_of(guide: str) -> dict[str, str]:
    """The files that a guide's section on packages shows, each after a sentence that begins with its name."""
    section = guide.partition("## A package of its own\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"`([\w./]+)` [^`]*:\n\n```(?:toml|python)\n(.*?)```", section, re.DOTALL))


def installed(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes the files of a package, builds its wheel and unpacks it. Returns the folder to import it from."""
    for name, text in files.items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return unpacked(folder / "package", folder)


def unpacked(project: Path, folder: Path) -> Path:
    """Builds a project's wheel by its build backend, and unpacks it in `folder`, which is all that installing one does.
    Returns the folder to import it from."""
    assert 'build-backend = "hatchling.build"' in (project / "pyproject.toml").read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        wheel = folder / build.build_wheel(str(folder))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
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
