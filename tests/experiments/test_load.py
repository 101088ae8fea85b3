"""Load and monitor, through the terminal and against servers with recorded answers."""

from __future__ import annotations

import csv
import itertools
import json
import re
import threading
from dataclasses import replace

import pytest

from playground import results
from playground.backends.connect import Servers
from playground.commands import main
from playground.errors import PlaygroundError
from playground.experiments.events import LevelDone, ResultReady, Watch
from playground.experiments.history import History, open_history
from playground.experiments.kinds import load
from playground.experiments.kinds.load import Load
from playground.experiments.questions import Question
from playground.experiments.session import Session
from playground.lane import Request
from playground.metrics.load import Level, Limits
from playground.views import load as views
from tests.backends.fake_server import BREAK, RECORDED, Answer, llama_server, serve, vllm

LIMITS = Limits(1.0, 0.1)
QUESTIONS = [Question("chat", Request(prompt, max_new_tokens=40)) for prompt in ("one", "two", "three")]


@pytest.fixture
def servers():
    with serve(llama_server()) as first, serve(vllm()) as second:
        yield first, second


def sent(servers, plan: load.Plan, **more):
    """The rows of a load test."""
    result = loaded(servers, plan, **more)
    return list(result.rows) if result else []


def loaded(servers, plan: load.Plan, watch=None, **more):
    events = []
    watch = watch or Watch()
    emit = watch.emit
    watch = replace(watch, emit=lambda event: (events.append(event), emit(event)))
    load_of(servers, plan, **more)({}, watch)
    return next((event.result for event in events if isinstance(event, ResultReady)), None)


def load_of(servers, plan: load.Plan, **more):
    return Load(Servers(servers[1].url, servers[0].url), tuple(QUESTIONS), plan, LIMITS, **more)


def test_every_level_asks_every_lane_the_same_prompts(servers):
    rows = sent(servers, load.Plan((Level(concurrency=1), Level(concurrency=3)), requests=4))
    assert len(rows) == 2 * 2 * 4
    for level in (1, 3):
        for lane in {row.lane for row in rows}:
            here = [row for row in rows if (row.level.concurrency, row.lane) == (level, lane)]
            assert [(row.number, row.question) for row in here] == [(0, 0), (1, 1), (2, 2), (3, 0)]
            assert all(row.tokens == 40 and not row.error for row in here)
    assert {row.drafted for row in rows if row.lane.startswith("vLLM")} == {45}, "from the last chunk"
    assert {(row.drafted, row.accepted) for row in rows if row.lane.startswith("llama")} == {(26, 20)}


def test_a_level_has_at_least_a_request_for_each_user(servers):
    assert len(sent(servers, load.Plan((Level(concurrency=6),), requests=1))) == 2 * 6


def test_in_open_loop_requests_come_at_the_same_random_moments_for_each_lane(servers):
    rows = sent(servers, load.Plan((Level(rate=100),), requests=6, seed=3))
    first, second = (sorted(row.sent_s for row in rows if row.lane.startswith(kind)) for kind in ("llama", "vLLM"))
    assert first == pytest.approx(second, abs=1e-9) and first[0] == 0 and len(set(first)) == 6
    assert all(row.ttft_s > 0 for row in rows)


def test_a_request_that_fails_is_a_row_with_its_error(servers):
    whole = servers[0].routes["/completion"].body
    lock, count = threading.Lock(), iter(range(100))

    def sometimes(*_):
        with lock:
            return Answer([*whole[:3], BREAK] if next(count) == 4 else whole)

    servers[0].routes["/completion"] = sometimes
    rows = sent(servers, load.Plan((Level(concurrency=2),), requests=4))
    failed = [row for row in rows if row.error]
    assert len(rows) == 8 and len(failed) == 1 and "broke off" in failed[0].error


def test_a_test_that_was_stopped_goes_on_with_what_it_has(servers, tmp_path):
    path = tmp_path / "rows.jsonl"
    plan = load.Plan((Level(concurrency=1), Level(concurrency=2)), requests=2)

    def until_the_second_level(event):
        if " at 2 users" in getattr(event, "label", ""):
            watch.stop()

    watch = Watch(until_the_second_level)
    rows = sent(servers, plan, watch=watch, record=str(path))
    assert {row.level.concurrency for row in rows} == {1}
    so_far = load_of(servers, plan, record=str(path)).so_far()
    assert so_far.rows == tuple(rows)
    assert any("Missing: 2." in said for said in views.findings(so_far))
    asked = len(servers[0].asked)
    again = sent(servers, plan, record=str(path))
    assert again[: len(rows)] == rows and len(again) == 2 * 2 * 2
    assert sum(path == "/completion" for path, _ in servers[0].asked[asked:]) == 1 + 2 + 2, "probe, warm-up, one level"
    with pytest.raises(PlaygroundError, match="another load"):
        sent(servers, replace(plan, requests=3), record=str(path))


def test_each_level_that_ended_is_told_with_its_figures(servers):
    events = []
    loaded(servers, load.Plan((Level(concurrency=1), Level(concurrency=2)), requests=2), Watch(events.append))
    ended = [event for event in events if isinstance(event, LevelDone)]
    assert [(event.number, event.total, len(event.points)) for event in ended] == [(n, 4, n) for n in (1, 2, 3, 4)]
    assert ended[-1].left_s == 0 < ended[0].left_s


def test_load_prints_the_table_and_writes_its_result_which_the_history_has(servers, tmp_path, capsys):
    out, page, traces = tmp_path / "load.json", tmp_path / "load.html", tmp_path / "traces.jsonl"
    main(["load", "--baseline-server", servers[0].url, "--server", servers[1].url, "--concurrency", "1", "2",
          "--requests", "2", "--per-category", "1", "--max-new-tokens", "40", "--json", str(out), "--html", str(page),
          "--traces", str(traces)])  # fmt: skip
    printed = capsys.readouterr().out
    assert re.search(r"vLLM: speculative +2 ", printed) and "goodput" in printed
    data = json.loads(out.read_text())
    assert [point["level"]["concurrency"] for point in data["points"]] == [1, 1, 2, 2]
    assert results.from_json(data).rows[0].tokens == 40
    assert len(traces.read_text().splitlines()) == 8 and page.stat().st_size > 1e6
    (entry,) = open_history().entries(search="load")
    assert (entry.status, entry.fraction) == ("finished", 1)
    main(["history", "show", entry.id])
    assert capsys.readouterr().out == printed
    main(["history", "export", entry.id, str(tmp_path / "load.csv")])
    lines = list(csv.DictReader((tmp_path / "load.csv").open()))
    assert [line["tokens"] for line in lines] == ["40"] * 8
    main(["history", "compare", entry.id, str(out)])
    assert "vLLM: speculative  2 " in capsys.readouterr().out


def test_a_server_that_dies_leaves_its_failed_requests_and_what_was_answered(servers, tmp_path):
    jobs = Session(History(tmp_path), lambda pair, work, watch: work({}, watch))
    plan = load.Plan((Level(concurrency=1), Level(concurrency=2)), requests=3)
    work = load_of(servers, plan)
    alive, answers = servers[1].routes["/v1/completions"], itertools.count()

    def dies(body, headers):
        whole = alive(body, headers)
        return whole if next(answers) < 3 else Answer([*whole.body[:2], BREAK])

    servers[1].routes["/v1/completions"] = dies
    name = jobs.start(work, "mine")
    jobs.runs[name].wait()
    entry, result = jobs.entry(name), jobs.result(name)
    assert entry.status == "failed" and "broke off" in entry.note and entry.title == "mine"
    assert [bool(row.error) for row in result.rows] == 3 * [False] + 2 * [False] + [True]
    assert any("Missing: 2." in said for said in views.findings(result))
    servers[1].routes["/v1/completions"] = alive
    assert jobs.unfinished(work) == name
    jobs.resume(name)
    jobs.runs[name].wait()
    assert jobs.entry(name).status == "finished" and len(jobs.result(name).rows) == 2 * 2 * 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rate", "0"], "from 0.001"),
        (["--baseline-server", "SERVER"], "named twice"),
        (["--suite", "nobody"], "nobody is"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(servers, arguments, named, capsys):
    given = [servers[0].url if argument == "SERVER" else argument for argument in arguments]
    with pytest.raises(SystemExit) as exit_:
        main(["load", "--server", servers[0].url, *given])
    assert exit_.value.code == 2
    assert named in capsys.readouterr().err


def test_a_suite_goes_through_two_servers(servers, tmp_path, capsys):
    out, prompts = tmp_path / "out.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "chat", "turns": ["one", "two"]}\n{"category": "chat", "turns": ["three"]}\n')
    main(["suite", "--baseline-server", servers[0].url, "--server", servers[1].url, "--suite", str(prompts), "--runs",
          "1", "--max-new-tokens", "40", "--json", str(out)])  # fmt: skip
    assert "vLLM: speculative" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [row["tokens"] for row in rows] == [40] * 6, "three turns through two lanes"
    roles = [[it["role"] for it in body["messages"]] for path, body in servers[1].asked if path == "/tokenize"]
    assert ["user", "assistant", "user"] in roles, "the second turn has the first and its answer"


def metrics_of(server) -> None:
    recorded = json.loads((RECORDED / "vllm.json").read_text(encoding="utf-8"))
    shown = iter([recorded["before"], recorded["after"], recorded["before"], recorded["after"], recorded["after"]])
    server.routes["/metrics"] = lambda *_: Answer(next(shown))


def test_monitor_reads_the_change_of_the_counters_and_asks_nothing_else(servers):
    metrics_of(servers[1])
    windows = load.watched(servers[1].url, 0.01, Watch())
    first, after_a_restart = next(windows), next(windows)
    windows.close()
    assert first.acceptance_rate == pytest.approx(32 / 45) == after_a_restart.acceptance_rate
    assert first.accepted_at == pytest.approx((8 / 9, 7 / 9, 7 / 9, 5 / 9, 5 / 9))
    assert {path for path, _ in servers[1].asked} == {"/metrics"}


def test_monitor_prints_a_line_for_each_window(servers, capsys):
    metrics_of(servers[1])
    main(["monitor", servers[1].url, "--every", "0.01", "--count", "1"])
    assert "71%" in capsys.readouterr().out
    metrics_of(servers[1])
    main(["monitor", servers[1].url, "--every", "0.01", "--count", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["drafted"] == 45


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        (Answer("up 1\nprocess_open_fds 3\n"), "no counters"),
        (Answer({"error": {"message": "Start it with `--metrics`"}}, 501), "501 to /metrics: .*`--metrics`"),
    ],
)
def test_a_server_that_shows_no_counters(servers, shown, named):
    servers[1].routes["/metrics"] = shown
    with pytest.raises(PlaygroundError, match=named):
        next(load.watched(servers[1].url, 0.01, Watch()))
