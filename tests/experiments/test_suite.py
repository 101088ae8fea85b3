from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.parts import BenchResult
from playground import metrics, results
from playground.backends.local import LocalBackend
from playground.commands import main
from playground.commands.forecast import drafts_of, table
from playground.errors import PlaygroundError
from playground.experiments import journal, suite
from playground.experiments.events import LaneSkipped, Progress, PromptDone, Watch
from playground.experiments.journal import Journal
from playground.experiments.questions import Question, load
from playground.experiments.race import Race
from playground.experiments.suite import summarise
from playground.lane import LOCAL, Request, assisted_lane, label, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD, Failure, Row, ratio
from playground.theory.forecast import Setting, hardware
from playground.views.suite import by_category, by_prompt, findings, setting

GREEDY = {"max_new_tokens": 12}
RESULTS = Path(__file__).parents[2] / "assets" / "results"


def spec_bench(path, categories, more=()):
    lines = [{"question_id": i, "category": c, "turns": [f"Question {i}", *more]} for i, c in enumerate(categories)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def questions(*source):
    return load(*source)[0]


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
        with pytest.raises(PlaygroundError, match=r"A \.jsonl file has a JSON object a line"):
            questions(str(source), None, GREEDY)


def test_the_figures_of_a_category_are_those_of_its_rows():
    rows = [row(0, STANDARD, 2.0), row(0, "x 5", 1.0, passes=5, speedup=2.0)]
    rows += [row(1, STANDARD, 6.0), row(1, "x 5", 1.5, passes=2, speedup=4.0)]
    rows += [row(2, STANDARD, 1.0, category="rag"), row(2, "x 5", 1.0, category="rag")]
    plain, (qa, rag, everything) = summarise(rows)[:3], summarise(rows)[3:]
    assert [(s.lane, s.overall) for s in plain] == 3 * [(STANDARD, 1)]
    assert (plain[0].tokens_per_s, qa.tokens_per_s) == (20 / 8, 20 / 2.5)
    assert qa.macro == pytest.approx(8**0.5), "each prompt counts the same"
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


def run(pair, lanes, asked, watch=None, runs=1, **more):
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    return suite.run(standard_lane(pair), lanes, asked, backends, watch or Watch(), runs=runs, **more)


def test_every_prompt_goes_through_every_lane_and_the_table_holds_all(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    lanes = [
        assisted_lane(pair, "ngram", 2),
        assisted_lane(pair, "assistant", 3, policy="confidence", confidence_threshold=0.2),
    ]
    path = spec_bench(tmp_path / "half.jsonl", ["qa", "rag"])
    events = []
    result = run(pair, lanes, questions(path, None, GREEDY), Watch(events.append))
    assert [label(lane) for lane in lanes] == ["ngram 2", "assistant 3, confidence 0.2"]
    assert len(result.rows) == len(result.traces) == 2 * 3
    assert all(row.identical for row in result.rows)
    assert all(row.passes <= row.tokens and row.speedup > 0 for row in result.rows)
    names = ["Prompt lookup (2 ahead)", "Assistant model (3 ahead)"]
    assert [[row[0] for row in by_category(result).rows].count(name) for name in names] == [3, 3]
    told = [event for event in events if isinstance(event, PromptDone)]
    assert [(event.number, event.total, list(event.speedups)) for event in told] == [(n, 2, names) for n in (1, 2)]


def test_a_finished_suite_holds_what_a_forecast_for_other_hardware_takes(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    lanes = [assisted_lane(pair, "assistant", 2, policy=policy) for policy in ("constant", "auto")]
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa", "rag"]), None, GREEDY)
    result = results.from_json(json.loads(json.dumps(results.to_json(run(pair, lanes, asked)))))
    target, drafter = (result.environment.shapes[name] for name in ("target", "assistant 2"))
    assert target == drafter, "they are the same model"
    assert target.cache == 2 * 2 * 2 * 8 and target.products == 15
    (machine, (it,), others), settings = (
        drafts_of(result),
        [Setting(hardware("h100")[0], batch=batch) for batch in (1, 8)],
    )
    assert it.lookahead == 2 and it.measured > 0
    assert others == ["Assistant model (2 ahead, auto)"], "its drafts say nothing of others"
    rows = table([it], settings).rows
    assert [row[-1] for row in rows] == ["does not pay"] * 2, "a drafter as large as the target never pays"
    in_bits = replace(result, environment=replace(machine, dtype="4-bit blocks, int8"))
    assert table(drafts_of(in_bits)[1], settings).rows == rows, "of the format, acceptance alone counts"
    with pytest.raises(PlaygroundError, match="--policy constant"):
        drafts_of(replace(result, lanes=lanes[1:]))


def test_the_command_prints_the_check_and_a_table_for_each_device(tiny_folder, tmp_path, capsys):
    pair, path = custom_pair(str(tiny_folder), str(tiny_folder)), tmp_path / "result.json"
    lanes = [assisted_lane(pair, "assistant", 2, policy="constant")]
    result = run(pair, lanes, questions(spec_bench(tmp_path / "half.jsonl", ["qa", "rag"]), None, GREEDY))
    machine = replace(result.environment, device_name="Abacus", device="abacus")
    path.write_text(json.dumps(results.to_json(replace(result, environment=machine))))
    main(["forecast", str(path), "--hardware", "t4", "m4-max", "--batch", "1", "--context", "512"])
    said = capsys.readouterr().out
    assert "not checked" in said and "NVIDIA T4, float16" in said and "Apple M4 Max, 40 GPU cores, bfloat16" in said


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
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa", "qa", "qa"]), None, GREEDY)

    def emit(event):
        if isinstance(event, PromptDone):
            watch.stop()

    watch = Watch(emit)
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked, watch)
    assert [(row.question, row.lane) for row in result.rows] == [(0, STANDARD), (0, "ngram 2")]
    assert run(pair, [assisted_lane(pair, "ngram", 2)], asked, watch) is None


def test_a_result_survives_its_file_but_for_its_traces(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY)
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked)
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))) == replace(result, traces=())


# Figures of the GPU benchmark are tables, which tests/benchmarks/test_gpu.py reads.
@pytest.mark.parametrize(
    "path", sorted(set(RESULTS.glob("*.json")) - set(RESULTS.glob("h200-*"))), ids=lambda p: p.stem
)
def test_every_result_file_that_we_publish_opens(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    read, write = (
        (results.from_json, results.to_json) if "rows" in data else (BenchResult.from_json, BenchResult.to_json)
    )
    result = read(data)
    assert {"torch", "llama.cpp", "vllm"} & {*result.environment.versions}
    assert read(json.loads(json.dumps(write(result)))) == result


@pytest.mark.parametrize("data", [[], {}, {"environment": {}, "rows": 5}])
def test_what_is_no_result_is_refused(data):
    with pytest.raises(PlaygroundError):
        results.from_json(data)


def test_an_answer_ends_where_the_context_does_and_a_prompt_that_fills_it_is_a_failure(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    lanes = [assisted_lane(pair, "ngram", 2)]
    asked = [Question("qa", Request("a" * 250, max_new_tokens=12, chat_template=False))]
    assert [row.tokens for row in run(pair, lanes, asked).rows] == [6, 6]
    result = run(pair, lanes, [Question("rag", Request("a" * 300)), *asked])
    assert [(row.question, row.tokens) for row in result.rows] == [(1, 6), (1, 6)], "the suite goes on"
    (failure,) = result.failures
    assert (failure.question, failure.category) == (0, "rag") and "holds 256" in failure.reason
    assert failure.reason in by_prompt(result).rows[0]
    assert "1 prompt could not be run" in findings(result)[-1]


def timed_run(tiny_folder, tmp_path, monkeypatch, plain, assisted, runs, cut_short=()):
    """One prompt through the standard lane and prompt lookup, whose runs take these seconds. Runs of as many seconds as
    in `cut_short` lack their last round."""
    took = {"Standard": iter(plain), "Prompt lookup": iter(assisted)}
    decode = Race.run

    def timed(trace):
        end_s = next(took[trace.lane.name])
        rounds = trace.rounds[: -1 if end_s in cut_short else None]
        return replace(trace, rounds=(*rounds[:-1], replace(rounds[-1], end_s=end_s)))

    monkeypatch.setattr(Race, "run", lambda race, lanes: [*map(timed, decode(race, lanes))])
    pair = custom_pair(str(tiny_folder), str(tiny_folder))
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY)
    return run(pair, [assisted_lane(pair, "ngram", 2)], asked, runs=runs)


def test_a_run_that_gives_other_tokens_is_reported_though_another_counts(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [4.0, 4.0], [2.0, 3.0], 2, cut_short=[3.0])
    assert [(row.seconds, row.identical) for row in result.rows] == [(4.0, True), (2.5, False)]


def test_of_several_runs_of_a_prompt_all_count(tiny_folder, tmp_path, monkeypatch):
    result = timed_run(tiny_folder, tmp_path, monkeypatch, [6.0, 4.0, 5.0], [2.0, 2.5, 8.0], 3)
    assert [row.seconds for row in result.rows] == [5.0, 2.5], "a median answer takes as long"
    assert result.rows[1].speedup == pytest.approx(15 / 12.5)
    assert result.rows[1].runs_s == (2.0, 2.5, 8.0)
    assert "3 runs" in setting(result)


def test_runs_of_other_lengths_are_all_tokens_over_all_time(tiny_folder, tmp_path, monkeypatch):
    """A run that ends early takes less time: its tokens must not be divided by the time of another."""
    plain, assisted = [4.0, 4.0, 4.0], [1.0, 5.0, 5.0]
    result = timed_run(tiny_folder, tmp_path, monkeypatch, plain, assisted, 3, cut_short=[1.0])
    tokens = {row.lane: row.runs_tokens for row in result.rows}
    assert len({*tokens["ngram 2"]}) == 2
    expected = (sum(tokens["ngram 2"]) / 11) / (sum(tokens[STANDARD]) / 12)
    assert result.rows[1].speedup == result.of("ngram 2").overall == pytest.approx(expected)
    speeds = {name: result.of(name).tokens_per_s for name in (STANDARD, "ngram 2")}
    assert speeds["ngram 2"] / speeds[STANDARD] == pytest.approx(expected)
    assert by_prompt(result).rows[1][5] == f"{result.rows[1].tokens_per_s:.1f}"


def test_a_category_that_is_named_all_is_one_of_them():
    rows = [row(0, STANDARD, 2.0, category="all"), row(0, "x 5", 1.0, category="all")]
    rows += [row(1, STANDARD, 2.0), row(1, "x 5", 2.0)]
    found = {s.category: (s.prompts, s.overall) for s in summarise(rows) if s.lane == "x 5"}
    assert found == {"all (category)": (1, 2.0), "qa": (1, 1.0), "all": (2, pytest.approx(4 / 3))}


def test_the_caption_says_what_the_intervals_are_over(tiny_folder, tmp_path):
    def caption(*categories):
        runs = 2
        rows = [
            replace(row(i, lane, s, category=category), runs_s=(s, s), runs_tokens=(10, 10))
            for i, category in enumerate(categories)
            for lane, s in ((STANDARD, 2.0), ("x 5", 1.0))
        ]
        asked = [Question("qa", Request("waves", max_new_tokens=2))]
        result = run(custom_pair(str(tiny_folder), None), [assisted_lane(custom_pair("t", None), "ngram", 5)], asked)
        return setting(replace(result, runs=runs, rows=tuple(rows), summaries=tuple(summarise(rows))))

    assert "(95 % intervals over prompts)" in caption(*["qa"] * 8)
    assert "(95 % intervals over runs)" in caption(*["qa"] * 5)
    assert "over prompts where a row has 8 or more, else over runs" in caption(*["qa"] * 5, *["rag"] * 4)
    assert "interval" not in caption("qa")


def test_few_prompts_have_an_interval_over_their_runs_and_one_that_spans_1_is_no_difference():
    noise = (1.0, 1.1, 0.9, 1.05, 0.95)
    rows = [
        replace(row(i, lane, 2.0), runs_s=tuple(seconds * x for x in noise))
        for i in range(2)
        for lane, seconds in ((STANDARD, 2.0), ("fast 5", 1.0), ("same 5", 2.0))
    ]
    rows = [replace(r, runs_s=r.runs_s[::-1]) if r.lane == "same 5" else r for r in rows]
    fast, same = (s for s in summarise(rows) if s.category == "all" and s.lane != STANDARD)
    assert fast.over == "runs" and fast.interval == pytest.approx((2, 2)), "both lanes' noise is that of the machine"
    assert same.interval[0] < 1 < same.interval[1]
    assert not metrics.differs(same.interval) and metrics.differs(fast.interval)
    assert metrics.differs(ratio(rows, "fast 5", over="same 5").interval)


def test_turns_are_asked_with_the_standard_lanes_answers_before_them(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "two.jsonl", ["qa"], more=["And?"]), None, {"max_new_tokens": 4})
    events: list[object] = []
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked, Watch(events.append), runs=2)
    assert [(row.turn, row.lane) for row in result.rows] == [(t, x) for t in (1, 2) for x in (STANDARD, "ngram 2")]
    steps = [(it.label, it.fraction) for it in events if isinstance(it, Progress) and "turn" in it.label]
    assert list(dict.fromkeys(steps)) == [
        (f"Prompt 1 of 1, turn {turn} of 2", at) for turn, at in ((1, 0), (1, 0.25), (2, 0.5), (2, 0.75))
    ]
    first, second = result.traces[0], result.traces[4]
    assert second.request.prompt == "And?"
    assert [turn.content for turn in second.request.turns] == ["Question 0", first.text, "And?"]
    assert len(second.prompt_ids) > len(first.prompt_ids) + len(first.tokens)
    assert "1, turn 2" in by_prompt(result).rows[2][0]


def test_a_suite_goes_on_where_its_record_ends(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), None)
    lanes, path = [assisted_lane(pair, "ngram", 2)], tmp_path / "rows.jsonl"
    asked = [
        *questions(spec_bench(tmp_path / "half.jsonl", ["qa"] * 3), None, GREEDY),
        Question("qa", Request("a" * 300)),
    ]
    watch = Watch(lambda event: watch.stop() if is_done(event) else None)
    run(pair, lanes, asked, watch, record=str(path))
    path.write_bytes(path.read_bytes() + b'{"question": 1, "rows": [{"ques')  # a crash in the middle of a line
    assert [result.question for result in journal.read(path)[1]] == [0]
    events = []
    result = run(pair, lanes, asked, Watch(events.append), record=str(path))
    told = [event for event in events if is_done(event)]
    assert [(event.number, event.total) for event in told] == [(2, 4), (3, 4), (4, 4)]
    assert told[-1].left_s == 0 < told[0].left_s
    assert [row.question for row in result.rows] == [0, 0, 1, 1, 2, 2] and len(result.failures) == 1
    assert suite.suite_result(*journal.read(path)) == replace(result, environment=journal.read(path)[0].environment)
    with pytest.raises(PlaygroundError, match="another suite"):
        run(pair, lanes, asked[:2], record=str(path))


def test_a_record_whose_first_line_was_not_finished_begins_anew_and_another_file_is_left_alone(tiny_folder, tmp_path):
    pair, path = custom_pair(str(tiny_folder), None), tmp_path / "rows.jsonl"
    lanes, asked = [assisted_lane(pair, "ngram", 2)], [Question("qa", Request("waves", max_new_tokens=2))]
    path.write_text('{"kind": "suite-re')
    assert run(pair, lanes, asked, record=str(path)).rows
    assert [result.question for result in journal.read(path)[1]] == [0]
    for content in ("my diary", "my diary\n"):
        path.write_text(content)
        with pytest.raises(PlaygroundError, match=r"a record|damaged"):
            run(pair, lanes, asked, record=str(path))
        assert path.read_text() == content


def test_two_lanes_with_the_same_settings_are_refused(tiny_folder):
    pair = custom_pair(str(tiny_folder), None)
    with pytest.raises(PlaygroundError, match="same settings"):
        run(pair, 2 * [assisted_lane(pair, "ngram", 2)], [Question("qa", Request("waves"))])


def test_a_full_disk_is_a_sentence_and_loses_no_finished_row(tiny_folder, tmp_path, monkeypatch):
    pair, path = custom_pair(str(tiny_folder), None), tmp_path / "rows.jsonl"
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"] * 2), None, GREEDY)
    opened = Path.open

    def full(self, mode="r", **options):
        if mode == "a" and self == path and self.exists() and self.read_bytes().count(b"\n") == 2:
            raise OSError(28, "No space left on device")
        return opened(self, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(PlaygroundError, match="No space"):
        run(pair, [assisted_lane(pair, "ngram", 2)], asked, record=str(path))
    assert [result.question for result in journal.read(path)[1]] == [0]


def test_a_model_error_is_a_failure_of_its_prompt(tiny_folder, tmp_path, monkeypatch):
    begin = LocalBackend.run

    def failing(backend, lane, request):
        if request.prompt == "Question 0" and lane.drafter == "ngram":
            raise RuntimeError("shapes differ")
        return begin(backend, lane, request)

    monkeypatch.setattr(LocalBackend, "warm_up", lambda *_: None)
    monkeypatch.setattr(LocalBackend, "run", failing)
    pair = custom_pair(str(tiny_folder), None)
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"] * 2), None, GREEDY)
    result = run(pair, [assisted_lane(pair, "ngram", 2)], asked)
    assert {row.question for row in result.rows} == {1}
    assert result.failures[0].lane == "ngram 2" and "shapes differ" in result.failures[0].reason


def test_a_drafter_that_cannot_be_loaded_is_left_out_where_that_is_asked(tiny_folder, tmp_path):
    pair = custom_pair(str(tiny_folder), "no/such/drafter/here")
    lanes = [assisted_lane(pair, "ngram", 2), assisted_lane(pair, "assistant", 2)]
    asked, events = questions(spec_bench(tmp_path / "half.jsonl", ["qa"]), None, GREEDY), []
    result = run(pair, lanes, asked, Watch(events.append), skip=True)
    assert [event.lane.drafter for event in events if isinstance(event, LaneSkipped)] == ["assistant"]
    assert result.lanes == (lanes[0],) and {row.lane for row in result.rows} == {STANDARD, "ngram 2"}
    for these, skip in ((lanes, False), (lanes[1:], True)):
        with pytest.raises(PlaygroundError, match="no/such/drafter/here"):
            run(pair, these, asked, skip=skip)


def test_the_order_of_the_lanes_is_shuffled_with_a_seed_that_is_kept(tiny_folder, tmp_path, monkeypatch):
    orders, decode = [], Race.run
    monkeypatch.setattr(Race, "run", lambda race, lanes: orders.append([*lanes]) or decode(race, lanes))
    pair = custom_pair(str(tiny_folder), None)
    lanes = [assisted_lane(pair, "ngram", k) for k in (1, 2, 3)]
    asked = questions(spec_bench(tmp_path / "half.jsonl", ["qa"] * 2), None, {"max_new_tokens": 2})

    def order(seed):
        orders.clear()
        result = run(pair, lanes, asked, runs=2, seed=seed)
        assert result.seed == seed and {trace.schedule for trace in result.traces} == {"by turns"}
        return [*orders]

    assert order(1) == order(1) != order(2)
    assert [len(lanes) for lanes in order(1)] == [4] * 4, "two prompts, two runs, four lanes"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("mine.txt", "One\n\nTwo\n", [("mine", "One"), ("mine", "Two")]),
        (
            "mine.csv",
            'prompt,category\n"One, with\na break",qa\nTwo,\n',
            [("qa", "One, with\na break"), ("mine", "Two")],
        ),
        ("mine.jsonl", '{"prompt": "One\u2028", "category": "qa"}\n', [("qa", "One\u2028")]),
        (
            "speed.jsonl",
            '{"category": "coding", "source": "x", "messages": [{"role": "user", "content": "One"}]}',
            [("coding", "One")],
        ),
        ("mine.yaml", "title: T\nprompts:\n- {name: a, title: A, kind: qa, text: One}\n", [("qa", "One")]),
        (
            "batch.jsonl",
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": '
            '[{"role": "system", "content": "S"}, {"role": "user", "content": "One"}]}}\n'
            '{"custom_id": "2", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "Two"}}',
            [("batch", "One"), ("batch", "Two")],
        ),
        (
            "aiperf.jsonl",
            '{"text": "One"}\n{"session_id": "a", "turns": [{"text": "Two", "delay": 0}, {"text": "Three"}]}',
            [("aiperf", "One"), ("aiperf", "Two")],
        ),
    ],
)
def test_a_users_own_file_is_read_in_many_forms(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = questions(str(tmp_path / name), None, GREEDY)
    assert [(question.category, question.request.prompt) for question in found] == expected


def test_a_broken_line_is_named_and_skipped_where_that_is_asked(tmp_path):
    path = tmp_path / "mine.jsonl"
    placeholder = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    lines = ['{"prompt": "One"}', "{", "", '{"turns": []}', json.dumps({"turns": [placeholder]}), '{"prompt": "Two"}']
    path.write_text("\n".join(lines))
    with pytest.raises(PlaygroundError, match=r"mine\.jsonl, line 2"):
        load(str(path), None, GREEDY)
    found, problems = load(str(path), None, GREEDY, on_error="skip")
    assert [question.request.prompt for question in found] == ["One", "Two"]
    assert [problem.split(":")[0][-6:] for problem in problems] == ["line 2", "line 4", "line 5"]
    assert "prepare.py" in problems[2]


def is_done(event):
    return isinstance(event, PromptDone)


@pytest.mark.parametrize("place", ["turns", "system", "category"])
def test_half_a_surrogate_pair_is_found_when_a_prompt_is_read(tmp_path, place):
    path, half = tmp_path / "mine.jsonl", "ends in \ud83d"
    entry = {"turns": ["One", half]} if place == "turns" else {"prompt": "One", place: half}
    path.write_text(json.dumps({"prompt": "Two"}) + "\n" + json.dumps(entry))
    with pytest.raises(PlaygroundError, match=r"line 2: .* surrogate .* character 8"):
        load(str(path), None, GREEDY)
    found, problems = load(str(path), None, GREEDY, on_error="skip")
    assert [question.request.prompt for question in found] == ["Two"] and len(problems) == 1


def test_a_record_is_never_unreadable_by_what_it_holds(tiny_folder, tmp_path):
    pair, path = custom_pair(str(tiny_folder), None), tmp_path / "rows.jsonl"
    lanes, asked = [assisted_lane(pair, "ngram", 2)], [Question("qa", Request("waves", max_new_tokens=2), ("again",))]
    run(pair, lanes, asked, record=str(path))
    whole, (first,) = path.read_bytes(), journal.read(path)[1]
    Journal(path).append(replace(first, question=1, failure=Failure(1, "qa", "ngram 2", "the server said \ud83d")))
    assert journal.read(path)[1][1].failure.reason == "the server said \ufffd"
    written = path.read_bytes()
    with pytest.raises(PlaygroundError, match="finite"):
        Journal(path).append(replace(first, rows=(replace(first.rows[0], seconds=float("nan")),)))
    assert path.read_bytes() == written
    path.write_bytes(whole.replace(b'"again"', b'"\\ud800"'))  # as earlier releases wrote it
    header, rows = journal.read(path)
    assert header.questions[0].more == ("\ufffd",) and len(rows) == 1


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_a_prompt_ends_where_its_line_does_and_nowhere_else(tmp_path, mark):
    for name in ("mine.txt", "mine.csv"):
        (tmp_path / name).write_text(f"prompt\nOne{mark}more\n", encoding="utf-8")
        assert questions(str(tmp_path / name), None, GREEDY)[-1].request.prompt == f"One{mark}more"


def test_a_long_cell_is_a_long_prompt_and_what_is_no_csv_is_a_sentence(tmp_path):
    (tmp_path / "mine.csv").write_text(f"prompt\n{'x' * 200_000}\n")
    assert len(questions(str(tmp_path / "mine.csv"), None, GREEDY)[0].request.prompt) == 200_000


def test_brackets_without_an_end_are_no_suite(tmp_path):
    for content in ("[" * 20_000, "a: 2026-99-99", "a: " + "9" * 5_000):
        (tmp_path / "mine.yaml").write_text(content)
        with pytest.raises(PlaygroundError, match="not YAML"):
            questions(str(tmp_path / "mine.yaml"), None, GREEDY)


def test_the_suites_of_real_traffic_are_read():
    agent, thinking, long = (questions(name, None, GREEDY) for name in ("agent", "thinking", "long"))
    resumed = [each for each in agent if not each.request.prompt]
    assert resumed and all(each.request.turns[-1].role == "tool" and each.request.tools for each in resumed)
    assert all(each.more for each in agent)
    assert all(not each.request.history for each in thinking)
    assert all(len(each.request.prompt) > 5000 for each in long)


def test_a_conversation_is_a_question_that_goes_on_from_it(tmp_path):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now?"},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": chat, "tools": [{"name": "f"}]}))
    (asked,) = questions(str(path), None, GREEDY)
    assert (asked.request.prompt, asked.request.system, len(asked.request.turns)) == ("And now?", "Be brief.", 3)
    assert json.loads(asked.request.tools) == [{"name": "f"}]
    path.write_text(json.dumps({"messages": chat[:3]}))
    with pytest.raises(PlaygroundError, match=r"line 1: .* assistant"):
        questions(str(path), None, GREEDY)


def test_bfcl_s_turns_functions_and_types_are_read(tmp_path):
    parameters = {"type": "dict", "properties": {"x": {"type": "float"}, "type": {"type": "tuple"}}}
    function = {"name": "f", "description": "d", "parameters": parameters}
    entry = {
        "id": "multi_turn_base_0",
        "question": [[{"role": "user", "content": "One"}], [{"role": "user", "content": "Two"}]],
        "function": [function],
    }
    path = tmp_path / "bfcl.jsonl"
    path.write_text("\n".join(map(json.dumps, [entry, {**entry, "id": "simple_12", "question": entry["question"][0]}])))
    turns, single = questions(str(path), None, GREEDY)
    assert (turns.category, turns.request.prompt, turns.more) == ("multi_turn_base", "One", ("Two",))
    assert (single.category, single.request.prompt, single.more) == ("simple", "One", ())
    (tool,) = json.loads(turns.request.tools)
    assert tool["parameters"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "type": {"type": "array"}},
    }


def test_mt_bench_s_prompts_are_turns(tmp_path):
    path = tmp_path / "mt.jsonl"
    path.write_text(json.dumps({"category": "writing", "prompt": ["One", "Two"], "prompt_id": 81}))
    (asked,) = questions(str(path), None, GREEDY)
    assert (asked.request.prompt, asked.more) == ("One", ("Two",))
