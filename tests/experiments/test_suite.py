from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground.errors import PlaygroundError
from playground.experiments import suite
from playground.experiments.suite import STANDARD, Question, Row, label, questions, run, summarise
from playground.lane import Request, assisted_lane
from playground.presets import custom_pair
from playground.views.report import suite_table

GREEDY = {"max_new_tokens": 12}


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
        with pytest.raises(PlaygroundError, match="is no suite"):
            questions(str(source), None, GREEDY)


def test_the_figures_of_a_category_are_those_of_its_rows():
    rows = [row(0, STANDARD, 2.0), row(0, "x 5", 1.0, passes=5, speedup=2.0)]
    rows += [row(1, STANDARD, 6.0), row(1, "x 5", 1.5, passes=2, speedup=4.0)]
    rows += [row(2, STANDARD, 1.0, category="rag"), row(2, "x 5", 1.0, category="rag")]
    qa, rag, everything = summarise(rows)
    assert (qa.category, qa.prompts, qa.speedup) == ("qa", 2, 3.0)
    assert qa.mean_accepted_length == pytest.approx(20 / 7)
    assert qa.acceptance_rate == 0.5
    assert qa.overall == pytest.approx(8 / 2.5)
    assert rag.overall == 1
    assert everything.overall == pytest.approx(9 / 3.5)
    assert everything.interval is None  # three prompts make none


def test_prompts_that_all_gain_alike_have_a_narrow_interval():
    rows = [row(i, lane, seconds) for i in range(8) for lane, seconds in ((STANDARD, 2.0), ("x 5", 1.0))]
    assert summarise(rows)[-1].interval == pytest.approx((2.0, 2.0))


def test_every_prompt_goes_through_every_lane_and_the_table_tells_all(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    lanes = [assisted_lane(pair, "ngram", 2), assisted_lane(pair, "assistant", 3, "confidence", 0.2)]
    path = spec_bench(tmp_path / "half.jsonl", ["qa", "rag"])
    result = run(pair, lanes, questions(path, None, GREEDY), 1, dtype="float32", device="cpu", say=lambda line: None)
    assert [label(lane) for lane in lanes] == ["ngram 2", "assistant 3, confidence 0.2"]
    assert len(result["rows"]) == 2 * 3
    assert all(line["identical"] for line in result["rows"])
    assert all(line["passes"] <= line["tokens"] and line["speedup"] > 0 for line in result["rows"])
    table = suite_table(result)
    assert table.count("\n| ngram 2 |") == table.count("\n| assistant 3, confidence 0.2 |") == 3


def test_an_answer_ends_where_the_context_does_and_a_prompt_that_fills_it_is_refused(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    options = dict(dtype="float32", device="cpu", say=lambda line: None)
    lanes = [assisted_lane(pair, "ngram", 2)]
    asked = [Question("qa", Request("a" * 250, max_new_tokens=12, chat_template=False))]
    rows = run(pair, lanes, asked, 1, **options)["rows"]
    assert [row["tokens"] for row in rows] == [6, 6]
    with pytest.raises(PlaygroundError, match="holds 256"):
        run(pair, lanes, [*asked, Question("qa", Request("a" * 300))], 1, **options)


def timed_run(tiny_folder, tmp_path, monkeypatch, plain, assisted, runs, cut_short=()):
    """One prompt through the standard lane and prompt lookup, whose runs take those seconds, the first to warm up; runs
    of so many seconds as `cut_short` tells lack their last round."""
    took = {"Standard": iter(plain), "Assisted: prompt lookup": iter(assisted)}
    decode = suite._decode

    def timed(models, lane, request):
        end_s = next(took[lane.name])
        rounds = decode(models, lane, request)[: -1 if end_s in cut_short else None]
        return [*rounds[:-1], replace(rounds[-1], end_s=end_s)]

    monkeypatch.setattr(suite, "_decode", timed)
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY)
    lanes = [assisted_lane(pair, "ngram", 2)]
    return run(pair, lanes, asked, runs, dtype="float32", device="cpu", say=lambda line: None)


def test_a_run_that_writes_other_tokens_is_told_though_another_counts(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [9.0, 4.0, 4.0], [9.0, 2.0, 3.0], 2, cut_short=[3.0])
    assert [(line["seconds"], line["identical"]) for line in result["rows"]] == [(4.0, True), (2.0, False)]


def test_of_several_runs_of_a_prompt_the_quickest_of_each_lane_counts(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [9.0, 6.0, 4.0, 5.0], [9.0, 2.0, 3.0, 8.0], 3)
    assert [line["seconds"] for line in result["rows"]] == [4.0, 2.0]
    assert result["rows"][1]["speedup"] == 2.0
    assert "the quickest of 3 runs" in suite_table(result)
