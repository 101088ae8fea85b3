"""docs/add-a-drafter.md, followed to the letter: what it registers is offered wherever drafters are, in this repository
and in a package of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from gradio.utils import get_function_description

from playground import drafting_methods
from playground.commands import main
from playground.decoding import drafters
from playground.drafting_methods import DRAFTERS, HELP, METHODS, DraftingMethod
from playground.plugins import load_plugins
from playground.presets import load_pairs
from playground.ui import page
from playground.ui.compare.controls import drafter_choices
from tests.packages import files_of, in_python, installed
from tests.ui import fakes

GUIDE = (Path(__file__).parent.parent / "docs" / "add-a-drafter.md").read_text(encoding="utf-8")
REGISTRATION, CODE, *_ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
(HELP_PAGE,) = re.findall(r"```markdown\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def registered(tmp_path, monkeypatch):
    (tmp_path / "repeat.py").write_text(CODE, encoding="utf-8")
    monkeypatch.setattr(drafters, "__path__", [*drafters.__path__, str(tmp_path)])
    pages = shutil.copytree(HELP, tmp_path / "help")
    (pages / "repeat.md").write_text(HELP_PAGE, encoding="utf-8")
    monkeypatch.setattr(drafting_methods, "HELP", pages)
    method = eval(REGISTRATION, {"DraftingMethod": DraftingMethod, "DRAFTERS": DRAFTERS})
    monkeypatch.setitem(METHODS, method.name, method)


def test_it_is_in_the_menu_of_every_pair_that_fits(registered):
    pairs, problems = load_pairs()
    assert not problems
    for pair in (*pairs.values(), None):
        assert ("Repeat the last token", "repeat") in drafter_choices(pair)


def test_the_terminal_lists_it_and_runs_it(registered, tiny_folder, tmp_path, capsys):
    main(["drafters"])
    assert "repeat      Repeat the last token; exact; needs nothing" in capsys.readouterr().out
    main(["drafters", "repeat"])
    assert capsys.readouterr().out.startswith("# Repeat the last token")
    out = tmp_path / "out.json"
    main(["compare", "--target", str(tiny_folder), "--drafter", "repeat", "--prompt", "waves and waves and",
          "--max-new-tokens", "12", "--lookahead", "3", "--dtype", "float32", "--json", str(out)])  # fmt: skip
    standard, lane = json.loads(out.read_text())["lanes"]
    assert lane["lane"]["name"] == "Repeat the last token"
    assert max(len(round_["drafted"]) for round_ in lane["rounds"]) == 3
    assert lane["token_ids"] == standard["token_ids"]


def test_the_endpoint_accepts_it(registered):
    blocks = page.build(fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, ())
    compare = next(it.fn for it in blocks.fns.values() if it.api_name == "compare")
    assert re.search(r"One of ngram, .*\brepeat\b", get_function_description(compare)[1]["drafter"])


def test_a_package_of_its_own_adds_it_once_it_is_installed(tiny_folder, tmp_path, monkeypatch):
    site = installed(tmp_path, {**files_of(GUIDE), "playground_repeat/drafter.py": CODE})
    code = """
import sys, playground_repeat, playground.drafting_methods as it
print(*it.METHODS, 'torch' in sys.modules)
from playground.commands import main
main(['drafters', 'repeat'])
"""
    names, title, *_ = in_python(site, "-c", code).splitlines()
    assert names.endswith(" none repeat False"), "its registration may be imported first"
    assert title.startswith("# Repeat")

    monkeypatch.syspath_prepend(site)
    monkeypatch.setitem(METHODS, "repeat", None)  # so that it goes with the test
    del METHODS["repeat"]
    load_plugins("playground.drafters", drafting_methods._add)
    out = tmp_path / "out.json"
    main(["compare", "--target", str(tiny_folder), "--drafter", "repeat", "--prompt", "waves and waves and",
          "--max-new-tokens", "12", "--lookahead", "3", "--dtype", "float32", "--json", str(out)])  # fmt: skip
    standard, lane = json.loads(out.read_text())["lanes"]
    assert lane["lane"]["name"] == "Repeat the last token"
    assert max(len(round_["drafted"]) for round_ in lane["rounds"]) == 3
    assert lane["token_ids"] == standard["token_ids"]
    assert lane["environment"]["versions"]["playground-repeat"] == "0.1.0"
    assert "playground-repeat" not in standard["environment"]["versions"]
