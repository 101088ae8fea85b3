"""What `pip install` puts on a machine works without the checkout: the source archive is built, installed and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zlib

import pytest
from hatchling import build

from playground import ROOT
from tests.packages import unpacked

pytestmark = pytest.mark.starter


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Starts Python in an empty folder, where only the installed package can be found."""
    folder, compressor = tmp_path_factory.mktemp("installed"), zlib.compressobj
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(zlib, "compressobj", lambda level, *more: compressor(0, *more))  # nobody downloads these
        archive = folder / build.build_sdist(str(folder))
        with tarfile.open(archive) as sources:
            sources.extractall(folder, filter="data")
        site = unpacked(folder / archive.name.removesuffix(".tar.gz"), folder)
    (folder / "empty").mkdir()
    environment = os.environ | {"PYTHONPATH": str(site), "GRADIO_ANALYTICS_ENABLED": "False"}

    def start(*words: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, *words], cwd=folder / "empty", env=environment, **pipes)

    return start


INSIDE = """
import contextlib, runpy, sys
from importlib.metadata import entry_points
from pathlib import Path
import playground
from playground.models.cpu.native import library
from playground.commands import main

print(playground.__file__, entry_points(group="playground.backends"), entry_points(group="playground.commands"))
main(["drafters", "mtp"])
print("engine:", bool(list((Path(library.__file__).parent / "built").iterdir())), library.why_torch())
with contextlib.suppress(SystemExit):
    main(["monitor", "--help"])
sys.argv[1:] = ["pairs"]
runpy.run_module("playground", run_name="__main__")
"""


def test_the_terminal_works_where_nothing_but_the_package_is(run):
    """One process reads what one word of the terminal after the other would, and at last is the terminal itself."""
    process = run("-c", INSIDE)
    said, _ = process.communicate(timeout=300)
    parts = (
        "installed0/site/playground/__init__.py",
        "playground_servers:KINDS",
        "playground_distil:COMMANDS",
        "DeepSeek",
        "Ollama",
        "engine: True \n",
        "SmolLM2-135M",
    )
    assert process.returncode == 0 and all(part in said for part in parts), said


CELLS = """
import ast, json, sys, types

shows = types.SimpleNamespace(IFrame=lambda url, **size: url, display=print)
sys.modules["IPython"] = sys.modules["IPython.display"] = shows
names = {}
try:
    for source in json.loads(sys.argv[1]):
        *lines, last = ast.parse(source).body
        shown = isinstance(last, ast.Expr)
        exec(compile(ast.Module(lines if shown else [*lines, last], []), "cell", "exec"), names)
        if shown:
            print(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    for path in ("", "/docs"):
        print(names["urlopen"](f"http://127.0.0.1:7867{path}").read().decode())
finally:
    if "server" in names:
        names["server"].kill()
"""


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_and_the_page_has_its_styles_and_its_documents(run):
    """Without the cell that installs the package and the one that needs a GPU, and over fewer tokens."""
    cells = json.loads((ROOT / "docs" / "playground.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and not cell["metadata"]]
    assert len(code) == 3
    short = [source.replace("--max-new-tokens 64", "--max-new-tokens 8") for source in code]
    process = run("-c", CELLS, json.dumps(short))
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "http://127.0.0.1" in said and "MTP layer" in said and "accepted" in said
    rule = (ROOT / "assets" / "page.css").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert rule in said, "the style sheets are not on the page"
    assert "press **Run**" in said
