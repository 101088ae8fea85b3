"""What `pip install` puts on a machine works without the checkout: the source archive is built, installed and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import httpx
import pytest

from playground import ROOT

pytestmark = pytest.mark.starter


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Starts Python in an empty folder, where only the installed package can be found."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--quiet", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(archive)], check=True)
    (folder / "empty").mkdir()
    environment = os.environ | {"PYTHONPATH": str(folder / "site"), "GRADIO_ANALYTICS_ENABLED": "False"}

    def start(*words: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, *words], cwd=folder / "empty", env=environment, **pipes)

    return start


def test_the_terminal_works_where_nothing_but_the_package_is(run):
    compare = ("compare", "--pair", "starter", "--drafter", "mtp", "--prompt", "hi", "--max-new-tokens", "4")
    where = "import playground as it; print(it.__version__, it.__file__)"
    expected = {
        ("-c", where): "installed0/site/playground/__init__.py",
        ("-m", "playground", "pairs"): "SmolLM2-135M",
        ("-m", "playground", "drafters", "mtp"): "DeepSeek",
        ("-m", "playground", *compare): "MTP",
    }
    for words, text in expected.items():
        process = run(*words)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and text in said, (words, said)


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
finally:
    if "server" in names:
        names["server"].kill()
"""


def test_the_cells_of_the_notebook_run(run):
    """Without the one that installs the package and the one that needs a GPU."""
    cells = json.loads((ROOT / "docs" / "playground.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and not cell["metadata"]]
    assert len(code) == 3
    process = run("-c", CELLS, json.dumps(code))
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "http://127.0.0.1" in said and "MTP layer" in said and "accepted" in said


def test_app_opens_the_page_with_its_styles_and_its_documents(run):
    server = run("-u", "-m", "playground", "app", "--host", "127.0.0.1")
    try:
        url = next((found[0] for line in server.stdout if (found := re.search(r"http://[\d.:]+", line))), None)
        assert url, "the page did not start"
        page, document = httpx.get(url, timeout=60), httpx.get(f"{url}/docs", timeout=60)
        assert page.status_code == document.status_code == 200
        rule = (ROOT / "assets" / "page.css").read_text(encoding="utf-8").strip().splitlines()[-1]
        assert rule in page.text, "the style sheets are not on the page"
        assert "press **Run**" in document.text
    finally:
        server.kill()
        server.communicate()
