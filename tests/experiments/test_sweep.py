from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground import results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.kinds import sweep
from playground.experiments.kinds.options import Decoders
from playground.experiments.questions import Question
from playground.lane import LOCAL, Lane, Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair, load_pairs
from playground.results import STANDARD, Predicted, Row, SuiteResult
from playground.trace import Environment
from playground.views import report
from playground.views import sweep as view

ASKED = [Question(category, Request(f"waves and waves {category}", max_new_tokens=8)) for category in ("qa", "rag")]


def run(folder, axis, values, asked=ASKED, **more):
    pair = custom_pair(str(folder), None)
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    lane = assisted_lane(pair, "ngram", policy="constant")
    work = sweep.Sweep(pair=pair, lane=lane, axis=axis, values=tuple(values), questions=tuple(asked), **more)
    return work.run(standard_lane(pair), backends, Watch())


def test_a_lookahead_of_0_is_no_drafter_and_every_value_runs_on_the_same_prompts(tiny_folder):
    result = run(tiny_folder, "lookahead", [0, 1, 4])
    assert [(point.value, point.lane) for point in result.points] == [(0, STANDARD), (1, "ngram 1"), (4, "ngram 4")]
    assert [point.summaries[-1].prompts for point in result.points] == [2, 2, 2]
    assert result.points[0].overall.overall == 1
    assert sum(point.best for point in result.points) == 1
    assert len(result.suite.rows) == 2 * 3
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))) == replace(
        result, suite=replace(result.suite, traces=())
    )
    assert view.FALLS in view.findings(result)
    assert view.by_category(result).columns == ("lookahead", "qa", "rag", "all")
    assert view.by_position(result).columns[:2] == ("lookahead", "1")


def test_temperatures_are_compared_each_with_a_standard_lane_of_its_own(tiny_folder):
    result = run(tiny_folder, "temperature", [0, 1])
    assert len(result.suite.rows) == 2 * 2 * 2
    assert [len(point.summaries) for point in result.points] == [3, 3]
    assert all(point.lane == "ngram 5" and point.best is None for point in result.points)
    assert {trace.request.temperature for trace in result.suite.traces} == {0, 1}
    assert "temperature as swept" in report.of(result).setting


def test_prompts_are_filled_up_to_a_length_and_one_over_the_context_is_a_failure(tiny_folder):
    result = run(tiny_folder, "prompt_tokens", [100, 1000], ASKED[:1])
    lengths = {len(trace.prompt_ids) for trace in result.suite.traces}
    assert len(lengths) == 1 and 100 <= lengths.pop() <= 108
    assert result.points[1].summaries == () and "holds 256" in result.suite.failures[0].reason
    assert view.by_value(result).rows[1][2] == "–"


@pytest.mark.parametrize(
    ("axis", "values", "sentence"),
    [
        ("nodes", [4], "no tree"),
        ("lookahead", [], "one value"),
        ("lookahead", [2, 2], "named once"),
        ("lookahead", [65], "Lookahead"),
        ("acceptance", [2.0], "0 to 1"),
    ],
)
def test_what_cannot_be_swept_is_a_sentence(tiny_folder, axis, values, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        run(tiny_folder, axis, values)


@pytest.mark.parametrize(
    ("axis", "value", "questions", "lanes"), [("depth", 2048, 1, 1), ("acceptance", 0.5, 2, 2), ("nodes", 8, 2, 1)]
)
def test_depth_and_acceptance_are_settings_of_a_sweep_too(axis, value, questions, lanes):
    drafter = "composite" if axis == "nodes" else "ngram"
    options = sweep.SweepOptions(prompts=("the sea", "the winters"), drafter=drafter, axis=axis, values=(value,))
    work, _ = sweep.KIND.work(options, Decoders.of(load_pairs()[0]["starter"]))
    assert (type(work), work.axis) == (sweep.Sweep, axis)
    assert (len(work.questions), len(work.lanes)) == (questions, lanes)


def test_depths_are_given_in_ascending_order():
    with pytest.raises(PlaygroundError, match="ascending order"):
        sweep.lanes_of(Lane("x", "t", "ngram"), "depth", [512, 256])


def result_of(seconds):
    """A sweep whose lanes take these seconds, on eight prompts, give or take 2 %."""
    lane = Lane("x", "t", "ngram", policy="constant")
    rows = []
    for i in range(8):
        for k, base in {0: 10.0, **seconds}.items():
            name = STANDARD if not k else f"ngram {k}"
            noise = 1 + 0.02 * (-1) ** (i + k // 2)
            rows.append(Row(i, "qa", name, 10, 10, base * noise, 0.0, 4, 8, 10 / base / noise, True))
    request, where = Request("p"), Environment({}, None, "cpu", "a CPU", "float32", 1, (), "")
    lanes = sweep.lanes_of(lane, "lookahead", [0, *seconds])
    suite = SuiteResult(where, request, 1, tuple(lanes), tuple(rows), tuple(sweep.suite.summarise(rows)))
    return sweep.sweep_result("lookahead", [0, *seconds], lanes, suite)


def test_the_best_is_marked_with_all_that_cannot_be_told_from_it():
    result = result_of({2: 7.0, 4: 5.0, 6: 5.02, 8: 6.0})
    assert [point.value for point in result.points if point.ties] == [4, 6]
    assert [point.value for point in result.points if point.best] == [4]
    said = view.findings(result)[0]
    assert said.startswith("No clear winner: lookahead 4 gave 2.0") and said.endswith("; 6 cannot be told from it.")
    assert [row[1] for row in view.by_value(result).rows] == ["", "faster", "tie", "tie", "faster"]
    alone = result_of({2: 7.0, 4: 5.0})
    assert view.findings(alone)[0].startswith("Best lookahead: 4, 2.0")
    none, _, four = view.by_value(alone).rows
    assert (none[1], none[3]) == ("", "every engine") and four[1] == "best" and four[3].startswith("vLLM, SGLang")
    assert "num_speculative_tokens" in report.of(alone).deploy[0].text


def predicted_at(monkeypatch, tokens_per_pass, speedup):
    """The sentence on a prediction for lookahead 4, where 1 token a pass and 2x were measured."""
    monkeypatch.setattr(sweep, "_predicted", lambda values, suite: {4: Predicted(tokens_per_pass, speedup)})
    return view.findings(result_of({4: 5.0}))[1]


def test_a_prediction_that_misses_names_the_part_that_does(monkeypatch):
    assert "within a tenth of what was measured at every lookahead" in predicted_at(monkeypatch, 1.0, 2.1)
    assert "4, 1.50 predicted and 2.00 measured: a round cost 0.75 times" in predicted_at(monkeypatch, 1.0, 1.5)
    said = predicted_at(monkeypatch, 1.5, 3.0)
    assert "3.00 predicted and 2.00 measured: 1.50 tokens per check predicted, 1.00" in said


def test_a_sweep_without_a_prediction_says_what_it_needs(tiny_folder):
    assert view.NO_PREDICTION in view.findings(result_of({4: 5.0}))
    assert view.NO_PREDICTION not in view.findings(run(tiny_folder, "temperature", [0, 1]))


def test_lookaheads_are_predicted_from_the_deepest_run_of_all_prompts(tiny_folder):
    asked = [replace(it, request=replace(it.request, max_new_tokens=48)) for it in ASKED]
    result = run(tiny_folder, "lookahead", [0, 1, 4], asked, runs=2)
    speedups = [point.predicted.speedup for point in result.points]
    assert speedups[0] == 1 and all(speedup > 0 for speedup in speedups)
    assert [point.predicted.tokens_per_pass for point in result.points] == sorted(
        point.predicted.tokens_per_pass for point in result.points
    )
    assert view.by_value(result).columns[3] == "predicted"
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))).points == result.points


def test_none_can_be_the_best():
    result = result_of({2: 12.0, 4: 15.0})
    assert [point.value for point in result.points if point.ties] == [0]
    assert view.findings(result)[0].startswith("No lookahead")


def test_a_trees_size_and_a_threshold_make_lanes():
    tree = Lane("x", "t", "tree", lookahead=4)
    assert [lane.nodes for lane in sweep.lanes_of(tree, "nodes", [8.0, 16.0])] == [8, 16]
    thresholds = sweep.lanes_of(standard_lane(custom_pair("t", None)), "confidence_threshold", [0.2])
    assert [(lane.policy, lane.confidence_threshold) for lane in thresholds] == [("confidence", 0.2)]
