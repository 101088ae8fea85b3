"""The tabs beside Compare without a browser: what their controls ask for, and how an experiment is followed."""

from __future__ import annotations

import asyncio

import pytest

from playground.backends.device_queue import DeviceQueue
from playground.errors import PlaygroundError
from playground.experiments.history import History
from playground.experiments.jobs import Jobs
from playground.hosting.access import FOR_VISITORS, Access
from playground.lane import Lane
from playground.metrics.load import Level
from playground.ui import deploy, markup
from playground.ui.compare.handlers import Handlers
from playground.ui.experiments import load, lossless, recommend, suite, sweep
from playground.ui.experiments import tab as experiment
from playground.ui.experiments.service import Experiments, View
from playground.views import engines
from tests.backends.fake_server import llama_server, serve, vllm
from tests.ui import fakes

REPEATS = {"suite": "examples", "file": None, "per_category": None, "max_new_tokens": 4, "temperature": 0, "runs": 1}
ASKED = {"pair": "fake", "drafters": ["ngram"], "order_seed": 0, **REPEATS}
LOAD = {
    "baseline": "http://127.0.0.1:1", "server": "http://127.0.0.1:2", "model": "", "way": load.USERS, "levels": "1, 2",
    "requests": 8, "ttft": 1.0, "tpot": 0.1, "seed": 0, **REPEATS,
}  # fmt: skip
SWEEP = {**ASKED, "drafter": "ngram", "axis": "lookahead", "values": (0, 2)}


def experiments(access: Access = Access()) -> Experiments:  # noqa: B008
    queue, history = DeviceQueue(), History(None)
    events = Handlers(fakes.PAIRS, fakes.Backend, fakes.Store().fit, queue=queue)
    return Experiments(Jobs(history, events.start_long, queue), history, access)


def followed(found: Experiments, name: str) -> list[View]:
    async def views() -> list[View]:
        return [view async for view in found.watch(name)]

    return asyncio.run(views())


@pytest.fixture
def one(tmp_path) -> dict[str, str]:
    """A suite of one prompt."""
    (tmp_path / "one.txt").write_text("A prompt")
    return {"suite": "own", "file": str(tmp_path / "one.txt")}


@pytest.mark.parametrize(("tab", "prompts"), [(suite, 1), (sweep, 1), (recommend, 3)])
def test_an_experiment_is_followed_to_its_result(tab, prompts, one):
    kind = tab.KIND
    found = experiments()
    name = found.start(*tab.asked_for(fakes.PAIRS, {**SWEEP, **one}))
    assert found.running(kind.name) == name
    views = followed(found, name)
    assert views[-1].entry.status == "finished" and len(views[-1].done) == prompts
    id_, head, *_, tables, run, stop, resume, save = experiment._shown(kind, views[-1])
    assert id_ == name and kind.findings(views[-1].result)[0] in head and "<table>" in tables
    assert run["interactive"] and not stop["interactive"] and not resume["visible"] and save["visible"]
    assert f'href="{kind.name}?id={name}"' in markup.history([views[-1].entry], searched=False)


def test_a_load_test_is_followed_to_its_verdict_and_its_charts():
    found = experiments()
    with serve(llama_server()) as first, serve(vllm()) as second:
        asked = {**LOAD, "baseline": first.url, "server": second.url, "per_category": 1, "max_new_tokens": 40}
        name = found.start(*load.asked_for(asked))
        last = followed(found, name)[-1]
    assert last.entry.status == "finished" and len(last.done) == 4
    _, head, speedup, pareto, tables, *_, save = experiment._shown(load.KIND, last)
    assert (
        "vLLM: speculative against llama-server: ngram-map-k, by the time per token of a request: " in head
        and "at 2 (" in head
        and save["visible"]
    )
    assert speedup["visible"] and pareto["visible"] and "goodput" in tables
    assert "llama-server: " in experiment._progress(load.KIND, last)[1], "the levels so far"
    assert f'href="load?id={name}"' in markup.history(found.entries(), searched=False)


def test_a_server_that_does_not_answer_fails_in_a_sentence():
    found = experiments()
    last = followed(found, found.start(*load.asked_for(LOAD)))[-1]
    assert last.entry.status == "failed" and "No server answers at http://127.0.0.1:1" in last.entry.note


def test_rates_are_levels_too():
    work, title = load.asked_for({**LOAD, "way": load.RATES, "levels": "0.5 2"})
    assert work.plan.levels == (Level(rate=0.5), Level(rate=2.0)) and "0.5/s, 2 requests a second" in title


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"levels": "1, many"}, "not numbers of users. Give whole numbers up to 256"),
        ({"levels": "0.5"}, "not numbers of users"),
        ({"levels": ""}, "not numbers of users"),
        ({"way": load.RATES, "levels": "0"}, "not numbers of requests a second"),
        ({"server": " "}, "Give the address"),
    ],
)
def test_a_load_that_cannot_be_is_refused_before_anything_is_asked(changes, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        load.asked_for({**LOAD, **changes})


def test_what_cannot_run_fails_in_a_sentence_and_can_go_on():
    found = experiments()
    name = found.start(*suite.asked_for(fakes.PAIRS, {**ASKED, "pair": "large"}))
    last = followed(found, name)[-1]
    assert last.entry.status == "failed" and "cannot run here" in last.entry.note
    _, head, *_, resume, save = experiment._shown(suite.KIND, last)
    assert 'role="alert"' in head and resume["visible"] and not save["visible"]


def test_of_one_that_was_stopped_before_its_end_the_finished_prompts_are_shown(one):
    found = experiments()
    last = followed(found, found.start(*suite.asked_for(fakes.PAIRS, {**ASKED, **one})))[-1]
    for tab, said in ((recommend, "before the choice"), (lossless, "1 of 1 greedy outputs are identical")):
        shown = " ".join(str(each) for each in experiment._shown(tab.KIND, last))
        assert said in shown and "By prompt" in shown


def test_settings_to_deploy_are_blocks_to_copy_with_names_escaped():
    lane = Lane("<b>", "a/<i>target", drafter="ngram", lookahead=3)
    shown = deploy.blocks(engines.settings(lane, "ngram"))
    assert "<i>" not in shown and "a/&lt;i&gt;target" in shown
    assert shown.count('class="copy"') == shown.count("<pre ") == 5
    assert "<h3>mlx-lm <small></small></h3><p>mlx-lm drafts with a draft model only.</p>" in shown


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pair": "none"}, "There is no pair 'none'"),
        ({"suite": "own"}, "Choose a file"),
        ({"values": ()}, "needs one value"),
        ({"axis": "nodes"}, "drafts no tree"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_runs(changes, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        sweep.asked_for(fakes.PAIRS, {**SWEEP, **changes})


def test_values_are_read_from_text():
    assert sweep.read("0, 2 4") == (0, 2, 4)
    with pytest.raises(PlaygroundError, match="are not numbers"):
        sweep.read("1, x")


def test_a_wrong_rule_is_a_lane_of_its_own():
    work, _ = lossless.asked_for(fakes.PAIRS, {**ASKED, "rules": ["top-2"], "draws": 16})
    assert len(work.lanes) == 2 and work.draws == 16


def test_visitors_run_no_long_experiments():
    found = experiments(Access(public=True, models=(), limits=FOR_VISITORS))
    with pytest.raises(PlaygroundError, match="your own machine"):
        found.start(*suite.asked_for(fakes.PAIRS, ASKED))
    assert found.running("suite") == ""
