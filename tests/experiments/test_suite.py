from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from playground import metrics, results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments import suite
from playground.experiments.events import PromptDone
from playground.experiments.questions import Question, questions
from playground.lane import LOCAL, Request, assisted_lane, label, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD, Row
from playground.views.suite import table

GREEDY = {"max_new_tokens": 12}
RESULTS = Path(__file__).parents[2] / "assets" / "results"


def spec_bench(path, categories):
    lines = [{"question_id": i, "category": c, "turns": [f"Question {i}", "And?"]} for i, c in enumerate(categories)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def row(question, lane, seconds, tokens=10, passes=10, category="qa", speedup=1.0):
    return Row(question, category, lane, tokens, passes, seconds, 0.0, 4, 8, speedup, True)


def test_a_file_of_spec_benchs_form_is_read_and_its_eight_small_categories_are_one(tmp_path):
    path = spec_bench(tmp_path / "half.jsonl", ["writing", "coding", "qa", "qa"])
    asked = questions(path, None, GREEDY)
    assert [q.category for q in asked] == ["mt_bench", "mt_bench", "qa", "qa"]
    assert [q.request.prompt for q in asked] == [f"Question {i}" for i in range(4)]


def test_a_share_of_each_category_is_spread_over_it(tmp_path):
    path = spec_bench(tmp_path / "half.jsonl", ["qa"] * 10 + ["rag"] * 2)
    assert [q.request.prompt[9:] for q in questions(path, 3, GREEDY)] == ["0", "3", "6", "10", "11"]


def test_the_examples_are_a_suite():
    assert len(questions("examples", None, GREEDY)) == 5


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", '{"category": "qa"}']
    + [f'{{"category": "qa", "turns": {turns}}}' for turns in ("[]", "[5]", '"hi"')],
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "bad.jsonl").write_text(content)
    for source in (tmp_path / "bad.jsonl", tmp_path / "missing.jsonl"):
        with pytest.raises(PlaygroundError, match="is not a suite"):
            questions(str(source), None, GREEDY)


def test_the_figures_of_a_category_are_those_of_its_rows():
    rows = [row(0, STANDARD, 2.0), row(0, "x 5", 1.0, passes=5, speedup=2.0)]
    rows += [row(1, STANDARD, 6.0), row(1, "x 5", 1.5, passes=2, speedup=4.0)]
    rows += [row(2, STANDARD, 1.0, category="rag"), row(2, "x 5", 1.0, category="rag")]
    qa, rag, everything = suite.summarise(rows)
    assert (qa.category, qa.prompts, qa.speedup) == ("qa", 2, 3.0)
    assert qa.mean_accepted_length == pytest.approx(20 / 7)
    assert qa.acceptance_rate == 0.5
    assert qa.overall == pytest.approx(8 / 2.5)
    assert rag.overall == 1
    assert everything.overall == pytest.approx(9 / 3.5)
    assert everything.interval is None  # three prompts make none


def test_prompts_that_all_gain_alike_have_a_narrow_interval():
    rows = [row(i, lane, seconds) for i in range(8) for lane, seconds in ((STANDARD, 2.0), ("x 5", 1.0))]
    assert suite.summarise(rows)[-1].interval == pytest.approx((2.0, 2.0))


def run(pair, lanes, asked, runs=1, stop=None, emit=lambda event: None):
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    return suite.run(standard_lane(pair), lanes, asked, backends, runs=runs, stop=stop or threading.Event(), emit=emit)


def test_every_prompt_goes_through_every_lane_and_the_table_holds_all(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    lanes = [assisted_lane(pair, "ngram", 2), assisted_lane(pair, "assistant", 3, "confidence", 0.2)]
    path = spec_bench(tmp_path / "half.jsonl", ["qa", "rag"])
    events = []
    result = run(pair, lanes, questions(path, None, GREEDY), emit=events.append)
    assert [label(lane) for lane in lanes] == ["ngram 2", "assistant 3, confidence 0.2"]
    assert len(result.rows) == len(result.traces) == 2 * 3
    assert all(row.identical for row in result.rows)
    assert all(row.passes <= row.tokens and row.speedup > 0 for row in result.rows)
    assert table(result).count("\n| ngram 2 |") == table(result).count("\n| assistant 3, confidence 0.2 |") == 3
    told = [event for event in events if isinstance(event, PromptDone)]
    assert [(event.number, event.total, list(event.speedups)) for event in told] == [
        (n, 2, ["ngram 2", "assistant 3, confidence 0.2"]) for n in (1, 2)
    ]


def test_every_row_can_be_computed_again_from_its_trace(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa", "rag"]), None, GREEDY)
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked)
    for row, trace in zip(result.rows, result.traces, strict=True):
        m = metrics.measure(trace)
        assert (row.tokens, row.passes, row.seconds, row.accepted) == (
            m.tokens, m.verify_passes, m.total_s, m.accepted,
        )  # fmt: skip


def test_a_suite_that_is_stopped_keeps_the_prompts_that_were_finished(tiny_folder, tmp_path):
    pair, stop = custom_pair(str(tiny_folder), None), threading.Event()
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa", "qa", "qa"]), None, GREEDY)

    def emit(event):
        if isinstance(event, PromptDone):
            stop.set()

    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked, stop=stop, emit=emit)
    assert [(row.question, row.lane) for row in result.rows] == [(0, STANDARD), (0, "ngram 2")]
    assert run(pair, [assisted_lane(pair, "ngram", 2)], asked, stop=stop) is None


def test_a_result_survives_its_file_but_for_its_traces(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY)
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked)
    assert results.load(json.dumps(results.to_json(result))) == replace(result, traces=())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_file_that_we_publish_opens(path):
    result = results.load(path.read_text(encoding="utf-8"))
    assert result.environment.versions["torch"]
    assert results.load(json.dumps(results.to_json(result))) == result


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"environment": {}, "rows": 5}'])
def test_what_is_no_result_is_refused(content):
    with pytest.raises(PlaygroundError):
        results.load(content)


def test_an_answer_ends_where_the_context_does_and_a_prompt_that_fills_it_is_refused(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    lanes = [assisted_lane(pair, "ngram", 2)]
    asked = [Question("qa", Request("a" * 250, max_new_tokens=12, chat_template=False))]
    assert [row.tokens for row in run(pair, lanes, asked).rows] == [6, 6]
    with pytest.raises(PlaygroundError, match="holds 256"):
        run(pair, lanes, [*asked, Question("qa", Request("a" * 300))])


def timed_run(tiny_folder, tmp_path, monkeypatch, plain, assisted, runs, cut_short=()):
    """One prompt through the standard lane and prompt lookup, whose runs take these seconds. Runs of as many seconds as
    in `cut_short` lack their last round."""
    took = {"Standard": iter(plain), "Assisted: prompt lookup": iter(assisted)}
    decode = suite.decode

    def timed(backend, lane, *others):
        end_s = next(took[lane.name])
        trace = decode(backend, lane, *others)
        rounds = trace.rounds[: -1 if end_s in cut_short else None]
        return replace(trace, rounds=(*rounds[:-1], replace(rounds[-1], end_s=end_s)))

    monkeypatch.setattr(suite, "decode", timed)
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY)
    return run(pair, [assisted_lane(pair, "ngram", 2)], asked, runs)


def test_a_run_that_gives_other_tokens_is_reported_though_another_counts(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [4.0, 4.0], [2.0, 3.0], 2, cut_short=[3.0])
    assert [(row.seconds, row.identical) for row in result.rows] == [(4.0, True), (2.0, False)]


def test_of_several_runs_of_a_prompt_the_fastest_of_each_lane_counts(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [6.0, 4.0, 5.0], [2.0, 3.0, 8.0], 3)
    assert [row.seconds for row in result.rows] == [4.0, 2.0]
    assert result.rows[1].speedup == 2.0
    assert "the fastest of 3 runs" in table(result)
