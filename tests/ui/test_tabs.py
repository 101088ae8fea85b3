"""The tabs beside Compare without a browser: what their controls ask for, and how an experiment is followed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import Any

import pytest

from playground import presets
from playground.errors import PlaygroundError
from playground.experiments.history import History
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.options import options_of
from playground.experiments.session import Session
from playground.experiments.work import Experiment
from playground.hosting.access import FOR_VISITORS, Access
from playground.lane import Lane
from playground.metrics.load import Level
from playground.ui import panels
from playground.ui.compare.handlers import Decoding
from playground.ui.compare.tab import _lane_of
from playground.ui.experiments import best, controls, tab
from playground.ui.experiments.service import Experiments, View
from playground.views import engines, report
from playground.views.engines import Given
from tests.backends.fake_server import llama_server, serve, vllm
from tests.ui import fakes

SHORT = {"suite": "examples", "max_new_tokens": 4, "temperature": 0}
ASKED = {"pair": "fake", "drafters": ["ngram"], "runs": 1, **SHORT}
SWEEP = {"pair": "fake", "drafter": "ngram", "values": "0, 2", "runs": 1, **SHORT}
LOAD = {"baseline_server": "http://127.0.0.1:1", "server": "http://127.0.0.1:2", "concurrency": "1, 2", "requests": 8,
        **SHORT}  # fmt: skip
BY_KIND = {"suite": ASKED, "sweep": SWEEP, "load": LOAD,
           "recommend": {"pair": "fake", "drafters": ["ngram"], **SHORT},
           "doctor": {"pair": "fake", "suite": "examples"},
           "lossless": {"pair": "fake", "drafters": ["ngram"], "max_new_tokens": 4}}  # fmt: skip


def asked_for(kind: str, **changes: object) -> tuple[Experiment, str, Mapping[str, Any]]:
    return controls.work_of(KINDS[kind], fakes.PAIRS, {**BY_KIND.get(kind, ASKED), **changes})


def experiments(access: Access = Access()) -> Experiments:  # noqa: B008
    return Experiments(Session(History(None), Decoding(fakes.Backend, fakes.Store().fit)), access)


def followed(found: Experiments, name: str) -> list[View]:
    async def views() -> list[View]:
        return [view async for view in found.watch(name)]

    return asyncio.run(views())


@pytest.fixture
def one(tmp_path) -> dict[str, str]:
    """A suite of one prompt."""
    (tmp_path / "one.txt").write_text("A prompt")
    return {"suite": "own", "file": str(tmp_path / "one.txt")}


@pytest.mark.parametrize(("kind", "prompts"), [("suite", 1), ("sweep", 1), ("recommend", 3)])
def test_an_experiment_is_followed_to_its_result(kind, prompts, one):
    found = experiments()
    name = found.session.start(*asked_for(kind, **one))
    assert found.running(kind) == name
    views = followed(found, name)
    assert views[-1].entry.status == "finished" and len(views[-1].done) == prompts
    shown = tab._shown(views[-1])
    head, tables = shown["shown"], shown["tables"]
    assert shown["name"] == name and report.of(views[-1].result).findings[0] in head and "<table>" in tables
    assert shown["run"]["interactive"] and not shown["stop"]["interactive"]
    assert not shown["resume"]["visible"] and shown["save"]["visible"]
    assert f'href="{KINDS[kind].page}?id={name}"' in panels.history([views[-1].entry], searched=False)


def test_a_load_test_is_followed_to_its_verdict_and_its_charts():
    found = experiments()
    with serve(llama_server()) as first, serve(vllm()) as second:
        asked = {"baseline_server": first.url, "server": second.url, "per_category": 1, "max_new_tokens": 40}
        name = found.session.start(*asked_for("load", **asked))
        last = followed(found, name)[-1]
    assert last.entry.status == "finished" and len(last.done) == 4
    shown = tab._shown(last)
    assert (
        "vLLM: speculative against llama-server: ngram-map-k, " in shown["shown"]
        and "at 2 (" in shown["shown"]
        and shown["save"]["visible"]
    )
    assert shown["first"]["visible"] and shown["second"]["visible"] and "goodput" in shown["tables"]
    assert "llama-server: " in tab._progress(last)["tables"], "the levels so far"
    assert f'href="load?id={name}"' in panels.history(found.entries(), searched=False)


def test_a_server_that_does_not_answer_fails_in_a_sentence():
    found = experiments()
    last = followed(found, found.session.start(*asked_for("load")))[-1]
    assert last.entry.status == "failed" and "No server" in last.entry.note


def test_rates_are_levels_too():
    work, title, _ = asked_for("load", rate="0.5 2")
    assert work.plan.levels == (Level(rate=0.5), Level(rate=2.0)) and "0.5/s, 2 requests a second" in title


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"concurrency": "1, many"}, "not whole"),
        ({"concurrency": "0.5"}, "not whole"),
        ({"concurrency": "0"}, "Users must"),
        ({"concurrency": ""}, "Give numbers"),
        ({"rate": "1000"}, "from 0.001 to 256"),
        ({"server": " "}, "the address"),
    ],
)
def test_a_load_that_cannot_be_is_refused_before_anything_is_asked(changes, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        asked_for("load", **changes)


def test_what_cannot_run_fails_in_a_sentence_and_can_go_on():
    found = experiments()
    name = found.session.start(*asked_for("suite", pair="large"))
    last = followed(found, name)[-1]
    assert last.entry.status == "failed" and "82 GB" in last.entry.note
    shown = tab._shown(last)
    assert 'role="alert"' in shown["shown"] and shown["resume"]["visible"] and not shown["save"]["visible"]


def test_of_one_that_was_stopped_before_its_end_the_finished_prompts_are_shown(one):
    found = experiments()
    last = followed(found, found.session.start(*asked_for("suite", **one)))[-1]
    for kind in ("recommend", "lossless"):
        entry = dataclasses.replace(last.entry, kind=kind, status="stopped")
        shown = " ".join(str(each) for each in tab._shown(dataclasses.replace(last, entry=entry)).values())
        assert "Stopped before" in shown and "are identical" in shown and "By prompt" in shown


def test_the_doctor_offers_drafters_with_weights_alone_whatever_was_chosen_elsewhere():
    starter = presets.load_pairs()[0]["starter"]
    shown = controls.carried(KINDS["doctor"], {"starter": starter}, {"pair": "starter", "drafter": "ngram"})["drafter"]
    assert {name for _, name in shown["choices"]} == {*starter.weights} and shown["value"] in starter.weights


def test_the_doctor_takes_files_of_ones_own(tmp_path):
    """Those that are named on its page, and those that ran on Try."""
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    for values, target in ({"target": ""}, fakes.PAIRS["fake"].target), ({"target": "owner/target"}, "owner/target"):
        work, title, _ = asked_for("doctor", drafter=str(tmp_path), **values)
        assert (work.pair.target, work.pair.weights) == (target, {"eagle3": str(tmp_path)})
        assert tmp_path.name in title and work.lanes[0].drafter == "eagle3"
    for drafter in (None, ""):
        with pytest.raises(PlaygroundError, match="name a folder or an id"):
            asked_for("doctor", drafter=drafter, target="owner/target")
    tried = {"pair": "own", "drafter": "eagle3", "target": "owner/target", "assistant": "owner/head"}
    given = controls.carried(KINDS["doctor"], fakes.PAIRS, tried)
    assert (given["target"]["value"], given["drafter"]["value"]) == ("owner/target", "owner/head")
    assert "target" not in controls.carried(KINDS["doctor"], fakes.PAIRS, {**tried, "pair": "fake"})


@pytest.mark.parametrize(("kind", "changes"), [
    ("sweep", {"values": "0, 2, 4", "axis": "lookahead"}), ("suite", {"drafters": ["ngram"]}),
])  # fmt: skip
def test_the_controls_of_an_experiment_come_back_as_they_were(kind, changes):
    found, work = experiments(), asked_for(kind, **changes)
    name = found.session.start(*work)
    asked = found.started_with(name)
    again = controls.restored(KINDS[kind], fakes.PAIRS, asked)
    values = {control: update["value"] for control, update in again.items()}
    assert values.items() >= changes.items() and values["pair"] == "fake"
    assert controls.work_of(KINDS[kind], fakes.PAIRS, {**asked, **values})[:2] == work[:2]
    found.session.stop(name)


BEST = {"pair": "fake", "drafters": ["ngram"], "per_category": 0, "prompt": "Mine.", "log": None, "file": None,
        "depth": "quick", **SHORT}  # fmt: skip


@pytest.mark.parametrize(
    ("prompts", "quick", "sure"),
    [("this", "suite", "recommend"), ("examples", "suite", "recommend"), ("file", "suite", "recommend"),
     ("logs", "traffic", "traffic")],
)  # fmt: skip
def test_prompts_and_depth_choose_the_experiment_and_come_back(prompts, quick, sure, tmp_path):
    (tmp_path / "mine.txt").write_text("First\nSecond")
    turn = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}'
    (tmp_path / "log.jsonl").write_text(turn)
    files = {"file": str(tmp_path / "mine.txt"), "log": str(tmp_path / "log.jsonl")}
    for depth, kind in (("quick", quick), ("sure", sure)):
        found, asked = best.chosen_kind({**BEST, **files, "prompts": prompts, "depth": depth})
        assert found.name == kind
        work, _, kept = controls.work_of(found, fakes.PAIRS, asked)
        assert len(work.questions) == {"this": 1, "examples": 5, "file": 2, "logs": 1}[prompts]
        models = controls.Models(fakes.PAIRS, fakes.PAIR, None)
        again = best._restored(models, kept)
        assert (again["prompts"]["value"], again["depth"]["value"]) == (prompts, depth)
        assert prompts != "this" or again["prompt"]["value"] == "Mine."


def test_an_empty_prompt_is_asked_for():
    with pytest.raises(PlaygroundError, match="Type a prompt"):
        best.chosen_kind({**BEST, "prompts": "this", "prompt": " "})


def test_what_the_terminal_asked_for_fills_the_controls_too():
    again = controls.restored(KINDS["sweep"], fakes.PAIRS, {"pair": "fake", "values": [0, 2.5], "seed": 3})
    assert again["values"]["value"] == "0, 2.5" and "seed" not in again


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_terminal_left_out_has_its_default(kind):
    left_out = dict.fromkeys(options_of(KINDS[kind].options, "page"))
    again = controls.restored(KINDS[kind], fakes.PAIRS, {"pair": "fake", **left_out})
    values = {control: update["value"] for control, update in again.items()}
    if kind == "acceptance":
        assert values["rates"] == "0, 0.2, 0.4, 0.6, 0.8, 1"
    if "max_new_tokens" in values:
        assert values["max_new_tokens"] > 0


def test_settings_to_deploy_are_blocks_to_copy_with_names_escaped():
    lane = Lane("<b>", "a/<i>target", drafter="ngram", lookahead=3)
    shown = panels.blocks(engines.settings(lane, "ngram"))
    assert "<i>" not in shown and "a/&lt;i&gt;target" in shown
    assert shown.count('class="copy"') == shown.count("<pre ") == 5
    assert "<h3>mlx-lm <small></small></h3><p>mlx-lm drafts " in shown


def test_what_the_notes_of_several_engines_begin_with_is_said_once_above_them():
    lookup = Lane("y", "starter", "ngram", lookahead=10)
    for lane, k, times in ((lookup, 10, 0), (replace(lookup, policy="auto"), 3, 1)):
        found = [it for it in engines.of_ranked({lane: Given("1.10×", k)}) if it.engine in ("vLLM", "transformers")]
        shown = panels.blocks(found)
        (said,) = {escape(it.about) for it in found}
        assert shown.count(said) == 1 and shown.index(said) < shown.index("<h3>")
        assert shown.count("Measure it here") == times
        assert ('data-measure="ngram" data-lookahead="3"' in shown) == bool(times)


def test_a_press_runs_the_lane_of_a_command_that_was_not_measured():
    def pressed(data: object) -> list[object]:
        return [it.get("value") for it in _lane_of(SimpleNamespace(_data=data))]

    assert pressed({"drafter": "ngram", "lookahead": 4}) == ["ngram", 4, "constant"]
    for data in (
        None,
        {"drafter": "no", "lookahead": 4},
        {"drafter": "ngram", "lookahead": 10**9},
        {"drafter": "ngram"},
    ):
        assert pressed(data) == [None] * 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pair": "none"}, "'none'"),
        ({"suite": "own"}, "Choose a"),
        ({"values": "1 1"}, "named once"),
        ({"values": "1, x"}, "not numbers"),
        ({"axis": "nodes"}, "no tree"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_runs(changes, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        asked_for("sweep", **changes)


def test_values_are_read_from_text():
    work, *_ = asked_for("sweep", values="0, 2 4")
    assert work.values == (0, 2, 4) and work.lane.policy == "constant"


def test_a_wrong_rule_is_a_lane_of_its_own():
    work, *_ = asked_for("lossless", rules=["top-2"], draws=16)
    assert len(work.lanes) == 2 and work.draws == 16


def test_visitors_run_no_long_experiments():
    found = experiments(Access(public=True, models=(), limits=FOR_VISITORS))
    with pytest.raises(PlaygroundError, match="own machine"):
        found.session.start(*asked_for("suite"))
    assert found.running("suite") == ""


def test_a_log_comes_as_a_file_or_as_itself_and_never_as_a_path(tmp_path):
    chat = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}'
    (tmp_path / "log.jsonl").write_text(chat)
    asked = {"pair": "fake", "drafters": ["ngram"], "max_new_tokens": 4}
    for given in ({"log": "", "file": str(tmp_path / "log.jsonl")}, {"log": chat}):
        work, *_ = controls.work_of(KINDS["traffic"], fakes.PAIRS, {**asked, **given})
        assert len(work.questions) == 1
    with pytest.raises(PlaygroundError, match="your conversations"):
        controls.work_of(KINDS["traffic"], fakes.PAIRS, {**asked, "log": str(tmp_path / "log.jsonl")})
