"""The token view in another app, as docs/embed.md has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gradio as gr
import pytest

from playground import export
from playground.errors import PlaygroundError
from playground.ui import guest
from tests.ui import fakes

GUIDE = Path(__file__).parents[2] / "docs" / "embed.md"


def test_the_guide_s_app_shows_both_lanes(monkeypatch):
    monkeypatch.chdir(GUIDE.parents[1])
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    scope: dict = {"__name__": "guide"}
    exec(code, scope)
    views = [block for block in scope["app"].blocks.values() if isinstance(block, gr.HTML)]
    lanes = json.loads(views[-1].value["rest"])["lanes"]
    assert [lane["state"] for lane in lanes] == ["done", "done"] and all(views[-1].value["logs"])
    assert all(path.is_file() for path in guest.look()["css_paths"])


def test_a_lane_is_chosen_by_name_and_what_is_no_trace_is_refused():
    text = json.dumps(export.to_json(fakes.comparison()))
    assert json.loads(guest.value(text, "Prompt lookup")["rest"])["lanes"][1]["name"] == "Prompt lookup"
    with pytest.raises(PlaygroundError):
        guest.value("{}")
