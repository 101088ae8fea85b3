"""docs/add-an-experiment.md, followed to the letter."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from playground.commands import main
from playground.experiments.history import open_history
from playground.experiments.kinds import KINDS
from playground.ui import page, rooms
from tests.ui import fakes

GUIDE = Path(__file__).parents[2] / "docs" / "add-an-experiment.md"


@pytest.fixture
def registered(monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    module = types.ModuleType("playground.experiments.kinds.noise")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)
    monkeypatch.setitem(KINDS, "noise", module.KIND)


def test_the_guide_s_kind_has_a_command_an_entry_in_the_history_a_tab_and_an_endpoint(
    registered, tiny_folder, tmp_path, capsys
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("waves\nwinters")
    main(["noise", "--target", str(tiny_folder), "--dtype", "float32", "--max-new-tokens", "4", "--runs", "1",
          "--suite", str(prompts), "--html", str(tmp_path / "noise.html")])  # fmt: skip
    printed = capsys.readouterr().out
    assert "Standard again: " in printed and "identical" in printed
    for of_drafters in ("Which drafter", "fastest", "vLLM", "ahead"):
        assert of_drafters not in printed
    assert "By prompt" in (tmp_path / "noise.html").read_text(encoding="utf-8")
    (entry,) = open_history().entries()
    assert (entry.kind, entry.status) == ("noise", "finished")
    main(["history", "show", entry.id])
    assert capsys.readouterr().out == printed

    blocks = page.build(fakes.Store(), fakes.PAIRS, fakes.PAIR, ())
    assert "noise" in {it.api_name for it in blocks.fns.values()}
    assert "noise" in [path for path, *_ in blocks.pages]
    assert 'href="noise"' in rooms.markup(rooms.BEST_PAGE)
