from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from playground.settings import SETTINGS
from playground.ui import page
from playground.ui.compare.controls import SERVERS
from playground.ui.experiments import api as tools
from tests.ui import fakes


@pytest.fixture(scope="module")
def blocks() -> gr.Blocks:
    problems = ["The preset <b>.yaml: target should be there."]
    return page.build(
        fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, fakes.EXAMPLES, problems=problems, backend_for=fakes.Backend
    )


def test_comparisons_and_experiments_are_the_only_public_endpoints(blocks):
    kinds = [f"/{name}" for name in tools.KINDS]
    asking = ["/experiment", "/stop_experiment", "/experiments"]
    in_chat = ["/watch", "/watched", "/replay_view"]
    assert sorted(blocks.get_api_info()["named_endpoints"]) == sorted(["/compare", *kinds, *asking, *in_chat])


def test_a_broken_preset_is_named_at_the_top(blocks):
    shown = [block.value for block in blocks.blocks.values() if isinstance(block, gr.HTML)]
    assert any("The preset &lt;b&gt;.yaml" in str(value) for value in shown)


def test_every_control_has_a_line_of_help(blocks):
    controls = [
        block
        for block in blocks.blocks.values()
        if isinstance(block, (gr.Slider, gr.Dropdown, gr.Number, gr.Checkbox, gr.Textbox)) and block.visible
    ]
    bare = [control.label for control in controls if not control.info]
    assert bare == ["Prompt", "Models", "Drafter"], "the first line alone"
    assert sum(control.page == "" for control in controls) > len(bare) + 20


def test_no_event_of_a_run_takes_the_controls_one_by_one(blocks):
    """Of each input of an event that has ended, Gradio copies the value at every update of every later run."""
    controls = {it for block in blocks.fns.values() if block.name == "stream" for it in gathered(blocks, block)}
    assert len(controls) == len(SETTINGS) + len(SERVERS)
    taken = {it.name: len(controls & {*it.inputs}) for it in blocks.fns.values() if it.fn and it.targets}
    assert max(taken.values()) <= 2, taken


def test_a_press_on_run_is_four_events(blocks):
    """Each is a round trip or a redraw, on a machine that may be decoding."""
    events = blocks.get_config_file()["dependencies"]

    def chained(to: list[dict[str, Any]]) -> list[dict[str, Any]]:
        after = [it for it in events if it["trigger_after"] in {each["id"] for each in to}]
        return [*to, *chained(after)] if after else to

    ids = {block.elem_id: block._id for block in blocks.blocks.values() if isinstance(block, (gr.Button, gr.HTML))}
    for button, event in (("run", "click"), ("every", "click"), ("stage", "download"), ("stage", "retry")):
        pressed = chained([it for it in events if (ids[button], event) in map(tuple, it["targets"])])
        assert len(pressed) <= 4, [it["api_name"] for it in pressed]
        assert sum(it["backend_fn"] for it in pressed) == 2, "the run, and what follows it"
    for event in ("submit", "option_select"):
        assert len(chained([it for it in events if (ids["stage"], event) in map(tuple, it["targets"])])) <= 5
    finished = [it for it in events if it["api_name"].startswith("finish")]
    assert len(finished) == 7 and not any(it["trigger_only_on_success"] for it in finished)


def gathered(blocks: gr.Blocks, event: Any) -> list[Any]:
    """What the browser gathers into an event's first input, which is the first that it fills."""
    return next(it.inputs for it in blocks.fns.values() if it.js and it.outputs[:1] == event.inputs[:1])


def test_a_new_session_searches_the_disk_for_no_chart_library(blocks, monkeypatch):
    """Gradio describes every chart for each new session, in the thread that answers everybody."""
    searched: list[str] = []
    finder = SimpleNamespace(find_spec=lambda name, *where: searched.append(name))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    SessionState(blocks)
    assert "bokeh" not in searched
