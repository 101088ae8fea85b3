from __future__ import annotations

import json
import random
import statistics
from dataclasses import replace

import pytest

from playground import results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments import suite
from playground.experiments.events import PromptDone, Watch
from playground.experiments.history import History
from playground.experiments.kinds import recommend
from playground.experiments.kinds.options import Decoders
from playground.experiments.kinds.recommend import Recommend
from playground.experiments.questions import Question
from playground.lane import LOCAL, Request, label, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD, Row, rank
from playground.trace import Environment
from playground.views import recommend as view
from playground.views import report

SPEED = {"ngram": 1.2, "suffix": 0.8, "assistant": 1.5}  # the best that a drafter can give
ASKED = [Question("qa", Request(f"question {i}", max_new_tokens=32)) for i in range(5)]


def faked(speed, wobbly=None):
    """A suite whose lanes are as fast as `speed` says: question i has its own length, each run its own noise, which is
    large for the lane `wobbly`."""

    def run(baseline, lanes, questions, backends, watch, *, runs, seed, skip, record):
        asked.append(([label(lane) for lane in lanes], runs, seed, questions[0].request.max_new_tokens))
        rows = []
        for i in range(len(questions)):
            for name, factor in [(STANDARD, 1.0), *((label(lane), speed(lane)) for lane in lanes)]:
                rng = random.Random(f"{name} {seed} {i}")
                times = tuple((1 + i / 10) / factor * rng.gauss(1, 0.02) for _ in range(runs))
                if name == wobbly:
                    times = tuple(time * (0.05, 1.6)[j % 2] for j, time in enumerate(times))
                ours = statistics.median(times)
                rows.append(Row(i, "qa", name, 32, 20, ours, 0.0, 4, 8, factor, True, runs_s=times))
        of = suite.summarise(rows)
        return results.SuiteResult(
            ENVIRONMENT, questions[0].request, runs, tuple(lanes), tuple(rows), tuple(of),
            prompts=tuple(each.request.prompt for each in questions), seed=seed, counted="median",
        )  # fmt: skip

    asked = run.asked = []
    return run


ENVIRONMENT = Environment({"torch": "2"}, None, "cpu", "a machine", "float32", 2, (), "now")


def go(monkeypatch, speed, drafters=("ngram", "suffix", "assistant"), seed=0, **more):
    pair = replace(custom_pair("t", "a"), drafters=drafters, weights={"assistant": "a", "mtp": "m"})
    fake = faked(speed, **more)
    monkeypatch.setattr(recommend.suite, "run", fake)
    work = Recommend(pair=pair, lanes=Decoders.of(pair).lanes(()), questions=tuple(ASKED), seed=seed)
    return work.run(standard_lane(pair), {}, Watch()), fake.asked


def test_the_shallowest_setting_within_noise_of_the_fastest_is_chosen_and_runs_again(monkeypatch):
    deep = {2: 0.8, 5: 0.995, 8: 1.0}
    result, (screen, refine, confirm) = go(monkeypatch, lambda lane: SPEED[lane.drafter] * deep[lane.lookahead])
    assert screen == (["ngram 5", "suffix 5", "assistant 5"], 1, 0, 8), "a quarter of an answer is enough to screen"
    assert refine == (
        [f"{drafter} {k}" for drafter in ("assistant", "ngram") for k in (2, 5, 8)], 2, 1, 32,
    )  # fmt: skip
    assert confirm == (["assistant 5"], 3, 2, 32)
    assert label(result.lane) == "assistant 5" and {"assistant 5", "assistant 8"} <= {*result.ties}
    assert result.summary.overall == pytest.approx(1.4925, rel=0.03)
    shown = report.of(result)
    assert shown.findings[0].startswith("For these prompts on this machine: Assistant model (5 ahead), 1.")
    assert ("Assistant model (5 ahead)", "refined", "chosen") in [row[:3] for row in shown.tables[0].rows]
    assert "num_assistant_tokens = 5" in report.text(shown)
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))) == result


@pytest.mark.parametrize("lookup", [1.2, 0.9])
def test_an_engine_that_cannot_decode_the_chosen_way_gets_the_fastest_other_that_pays(monkeypatch, lookup):
    speed = {"ngram": lookup, "suffix": 0.8, "assistant": 0.7, "composite": 1.5}
    result, _ = go(monkeypatch, lambda lane: speed[lane.drafter], drafters=(*speed,))
    assert result.lane.drafter == "composite"
    vllm = next(it for it in view.settings(result) if it.engine == "vLLM")
    assert vllm.instead.startswith("Prompt lookup (" if lookup > 1 else STANDARD)
    assert ('"method": "ngram"' in vllm.text) == (lookup > 1)
    assert ("nearest is" if lookup > 1 else "Nothing else") in vllm.note


def test_no_drafter_is_said_plainly_where_none_is_faster(monkeypatch):
    result, (*_, confirm) = go(monkeypatch, lambda lane: 0.95 if lane.drafter == "ngram" else 0.7)
    assert result.lane is None and STANDARD in result.ties
    assert confirm[0] == [label(result.tested)] and result.tested.drafter == "ngram"
    said = report.text(report.of(result))
    assert ": no drafter." in said and "gave 0.9" in said
    assert "vllm serve" in said and "--speculative-config" not in said


def test_what_was_lucky_while_it_was_chosen_is_not_recommended(monkeypatch):
    runs = []

    def speed(lane):
        runs.append(lane)
        return 1.5 if len(runs) <= 3 + 6 else 1.0

    result, _ = go(monkeypatch, speed)
    assert result.lane is None and result.summary.overall == pytest.approx(1.0, rel=0.03)
    assert "no difference" in view.headline(result)


@pytest.mark.slow
def test_where_nothing_is_faster_few_recommendations_are_a_drafter(monkeypatch):
    """Six settings are refined, and one of them always looks best. Of 400 recommendations."""
    found = [go(monkeypatch, lambda lane: 1.0, seed=100 * i)[0] for i in range(400)]
    seen = sum(any(lane.gains for lane in rank(it.refined.rows)) for it in found)
    assert seen <= 0.05 * 400, "that one of six seems to gain is as rare as if there were one"
    assert sum(it.lane is not None for it in found) <= 0.045 * 400, "2.5 % is what the last interval leaves"


def test_a_noisy_fastest_does_not_hide_a_gain_that_was_seen(monkeypatch):
    """The fastest wobbles so much that its interval includes 1; one a little slower is sure."""
    result, (*_, confirm) = go(monkeypatch, lambda lane: {2: 1.0, 5: 1.3}.get(lane.lookahead, 1.35), wobbly="ngram 8")
    assert result.refined.of("ngram 8").interval[0] < 1 < result.refined.of("ngram 5").interval[0]
    assert confirm[0] == ["ngram 5"] and label(result.lane) == "ngram 5"


def test_it_runs_on_a_real_pair_and_leaves_a_record_for_each_stage(tiny_folder, tmp_path, monkeypatch):
    pair = custom_pair(str(tiny_folder), None)
    history = History(tmp_path)
    lanes = Decoders.of(pair).lanes(("ngram",))
    asked = tuple(replace(each, request=replace(each.request, max_new_tokens=8)) for each in ASKED[:1])
    name = history.add("recommend", "it", {})
    work = Recommend(pair=pair, lanes=lanes, questions=asked, record=str(history.record(name)))
    events = []
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    work(backends, Watch(events.append))
    result = events[-1].result
    assert {label(lane) for lane in result.refined.lanes} == {"ngram 2", "ngram 5", "ngram 8"}
    assert len(result.confirmed.rows) == 2 and work.tokens == (0.5 + 4 * 2 + 6) * 8
    assert len(list(history.record(name).parent.glob("*.jsonl"))) == 3
    history.update(name, "finished")  # what runs is not deleted
    history.delete(name)
    assert list(history.record(name).parent.glob("*")), "it can be brought back"
    monkeypatch.setattr("playground.experiments.history.UNDO_S", -1)
    assert not history.entries() and not list(history.record(name).parent.glob("*"))


def test_one_that_was_stopped_shows_the_last_stage_that_has_a_finished_prompt(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    asked = tuple(replace(each, request=replace(each.request, max_new_tokens=4)) for each in ASKED[:2])
    work = Recommend(
        pair=pair, lanes=Decoders.of(pair).lanes(("ngram",)), questions=asked, record=str(tmp_path / "it.jsonl")
    )
    assert work.so_far() is None
    backends, told = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, []

    def emit(event):
        if isinstance(event, PromptDone):
            told.append(event)
            if event.stage == "Refining":
                watch.stop()

    watch = Watch(emit)
    work(backends, watch)
    assert [(event.stage, event.number, event.total) for event in told] == [
        ("Screening", 1, 2), ("Screening", 2, 2), ("Refining", 1, 2),
    ]  # fmt: skip
    assert [event.fraction for event in told] == pytest.approx([0.25 / 14.5, 0.5 / 14.5, 4.5 / 14.5])
    assert all(event.left_s > 0 for event in told)
    assert {row.lane for row in work.so_far().rows} == {STANDARD, "ngram 2", "ngram 5", "ngram 8"}


def test_a_prompt_that_is_too_long_is_left_out_and_where_all_are_that_is_said(tiny_folder):
    pair = custom_pair(str(tiny_folder), None)
    long, short = (Question("qa", Request("a" * n, max_new_tokens=4, chat_template=False)) for n in (300, 30))
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}

    def recommended(*asked):
        work = Recommend(pair=pair, lanes=Decoders.of(pair).lanes(("ngram",)), questions=asked)
        return work.run(standard_lane(pair), backends, Watch())

    assert "could not" in view.reasons(recommended(long, short))[-1]
    with pytest.raises(PlaygroundError, match="No prompt"):
        recommended(long)
