"""Experiments that run on by themselves, and the history that keeps them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from playground import ROOT
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments import history as histories
from playground.experiments.events import Progress, PromptDone
from playground.experiments.history import History
from playground.experiments.journal import Journal
from playground.experiments.kinds.options import Decoders
from playground.experiments.kinds.suite import Suite
from playground.experiments.kinds.sweep import Sweep
from playground.experiments.kinds.traffic import KIND as TRAFFIC
from playground.experiments.kinds.traffic import TrafficOptions
from playground.experiments.questions import Question
from playground.experiments.race import Race
from playground.experiments.session import WAITING, Run, Session, opened
from playground.lane import LOCAL, Request, assisted_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "data")


@pytest.fixture
def work(tiny_folder):
    pair = custom_pair(str(tiny_folder), None)
    asked = tuple(Question("qa", Request(f"waves {i}", max_new_tokens=4)) for i in range(3))
    return Suite(pair=pair, lanes=(assisted_lane(pair, "ngram", 2),), questions=asked)


def jobs_of(history):
    store = ModelStore()

    def decode(pair, work, watch):
        work({LOCAL: LocalBackend(store, pair, "float32", "cpu")}, watch)

    return Session(history, decode)


def ended(jobs, name):
    run = jobs.runs[name]
    while not run.end.done():
        run.wait(0.05)  # not for longer: Ctrl-C reaches another thread than this one in the test
    return run.events


def test_an_experiment_runs_on_without_a_watcher_and_is_listed_with_its_result(history, work):
    jobs = jobs_of(history)
    name = jobs.start(work, "mine")
    jobs.runs[name].wait()
    (entry,) = history.entries()
    assert (entry.id, entry.kind, entry.title, entry.status, entry.fraction) == (name, "suite", "mine", "finished", 1)
    told = [event for event in jobs.runs[name].events if isinstance(event, PromptDone)]
    assert [event.number for event in told] == [1, 2, 3]
    assert len(jobs_of(history).result(name).rows) == 6, "another process opens it too"


def test_one_that_is_stopped_goes_on_where_it_was_stopped(history, work, monkeypatch):
    jobs, first, decode = jobs_of(history), threading.Event(), Race.run

    def pausing(race, lanes):
        if race.request.prompt == "waves 1":
            race.watch.progress(Progress("halfway", 0.5))
            first.set()
            race.watch.wait(60)
        return decode(race, lanes)

    monkeypatch.setattr(Race, "run", pausing)
    name = jobs.start(work, "mine")
    assert first.wait(60)
    entry = history.entry(name)
    assert (entry.status, entry.note, entry.fraction) == ("running", "halfway", 0.5), (
        "not only where a prompt has ended"
    )
    with pytest.raises(PlaygroundError, match="runs already"):
        jobs.resume(name)
    jobs.stop(name)
    ended(jobs, name)
    assert history.entry(name).status == "stopped"
    assert [row.question for row in jobs.result(name).rows] == [0, 0]
    assert jobs.unfinished(work) == name
    monkeypatch.setattr(Race, "run", decode)
    jobs = jobs_of(history)
    jobs.resume(name)
    assert [event.number for event in ended(jobs, name) if isinstance(event, PromptDone)] == [2, 3]
    assert history.entry(name).status == "finished" and len(jobs.result(name).rows) == 6
    assert jobs.unfinished(work) is None


def test_ctrl_c_while_it_is_watched_does_not_make_it_look_ended(history, work, monkeypatch):
    jobs, going_on, decode = jobs_of(history), threading.Event(), Race.run

    def pausing(*arguments):
        assert going_on.wait(60)
        return decode(*arguments)

    monkeypatch.setattr(Race, "run", pausing)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test before this one may have changed
    name = jobs.start(work, "mine")
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
        ended(jobs, name)
    signal.signal(signal.SIGINT, before)
    assert not jobs.runs[name].end.done()
    jobs.stop(name)
    going_on.set()
    ended(jobs, name)
    assert history.entry(name).status == "stopped"


def test_it_waits_for_the_device_and_can_be_stopped_there(history, work):
    jobs = jobs_of(history)
    before = jobs.add(Run(lambda watch: watch.wait(60)))
    name = jobs.start(work, "mine")
    assert history.entry(name).note == WAITING
    jobs.stop(name)
    assert ended(jobs, name) == []
    assert history.entry(name).status == "stopped"
    before.stop()


def test_a_sweep_is_an_experiment_too(history, work):
    jobs = jobs_of(history)
    name = jobs.start(
        Sweep(pair=work.pair, lane=work.lanes[0], axis="lookahead", values=(0.0, 2.0), questions=work.questions), "mine"
    )
    ended(jobs, name)
    assert [point.value for point in jobs.result(name).points] == [0, 2]


def test_without_texts_the_history_has_the_figures_alone(history, tiny_folder, tmp_path):
    """Neither its database nor a record holds what was asked or answered, while it runs or afterwards."""
    pair = custom_pair(str(tiny_folder), None)
    secret = {"messages": [{"role": "user", "content": "SECRET"}, {"role": "assistant", "content": "SECRET too"}]}
    options = TrafficOptions(log=json.dumps(secret), drafters=("ngram",), max_new_tokens=4, texts=False)
    work, title = TRAFFIC.work(options, Decoders.of(pair))
    running = jobs_of(history)
    name = running.start(work, title, {"log": "SECRET"})
    assert running.result(name) is None or running.entry(name).status == "finished"
    ended(running, name)
    assert running.entry(name).status == "finished" and running.result(name).suite.rows
    files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert files and not any(b"SECRET" in data for data in files)
    with pytest.raises(PlaygroundError, match="without texts"):
        running.resume(name)


def test_one_that_fails_says_why(history, work):
    jobs = jobs_of(history)
    pair = custom_pair("no/such/folder/anywhere", None)
    name = jobs.start(Suite(pair=pair, lanes=(assisted_lane(pair, "ngram", 2),), questions=work.questions), "mine")
    ended(jobs, name)
    entry = history.entry(name)
    assert entry.status == "failed" and "no/such/folder/anywhere" in entry.note
    assert jobs.result(name) is None


def full_disk(monkeypatch):
    """No statement that writes to a database succeeds any more."""

    class Full(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement.startswith(("INSERT", "UPDATE")):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(statement, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *of, **more: connect(*of, factory=Full, **more))


def test_a_full_disk_is_told_though_the_history_cannot_be_written_either(history, work, monkeypatch):
    def full(self, line):
        if "rows" in line:
            full_disk(monkeypatch)
            raise self._unwritten(OSError(28, "No space left on device"))
        write(self, line)

    write = Journal._write
    monkeypatch.setattr(Journal, "_write", full)
    jobs = jobs_of(history)
    name = jobs.start(work, "mine")
    ended(jobs, name)
    assert jobs.entry(name).status == "failed" and "No space" in jobs.entry(name).note
    with pytest.raises(PlaygroundError, match="is full"):
        history.keep("compare", "mine", {})


def test_a_damaged_database_is_told_with_what_to_do(history, tmp_path):
    name = history.keep("compare", "mine", {"a": "x" * 100_000})
    file = tmp_path / "data" / "history.sqlite"
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * 4096 + data[8192:])  # one page
    for look in (history.entries, lambda: history.keep("compare", "more", {}), lambda: history.result(name)):
        with pytest.raises(PlaygroundError, match=r"malformed.*PLAYGROUND_HISTORY"):
            look()
    file.write_bytes(data.replace(b'{"a": "xx', b'{"a": xxx'))
    with pytest.raises(PlaygroundError, match=f"{name} is damaged"):
        history.result(name)


RUNS = """
import sys
from pathlib import Path
from playground.experiments.history import History

history = History(Path(sys.argv[1]))
print(history.add("suite", "mine", __import__("json").loads(sys.argv[2])), flush=True)
sys.stdin.read()
"""


def test_one_that_runs_in_another_program_is_left_alone_and_a_crash_leaves_what_can_be_taken_up(
    history, work, tmp_path, monkeypatch
):
    command = [sys.executable, "-c", RUNS, str(tmp_path / "data"), json.dumps(asdict(work))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        name = program.stdout.readline().strip()
        # As after a step of the system clock, with which the time of a process's start moves.
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
        assert history.entry(name).status == "running" and jobs_of(history).unfinished(work) is None
        with pytest.raises(PlaygroundError, match="runs"):
            history.delete(name)
        program.kill()
    assert history.entry(name).status == "stopped"
    assert jobs_of(history).unfinished(work) == name
    assert not list((tmp_path / "data" / "running").iterdir())


def test_owners_see_their_own_and_nothing_else(history):
    mine = history.keep("compare", "mine", {"a": 1}, owner="me")
    history.keep("compare", "theirs", {}, owner="you")
    assert [entry.title for entry in history.entries("me")] == ["mine"]
    for look in (history.entry, history.result, history.work, history.delete):
        with pytest.raises(PlaygroundError, match=f"no experiment {mine}"):
            look(mine, "you")
    assert history.result(mine, "me") == {"a": 1}
    assert len(history.clear("me")) == 1 and not history.entries("me") and history.entries("you")


def test_what_was_deleted_is_brought_back_by_its_owner_alone_and_for_a_while(history, monkeypatch):
    mine = history.keep("compare", "mine", {"a": 1}, owner="me")
    before = history.entry(mine, "me")
    history.delete(mine, "me")
    assert not history.entries("me")
    with pytest.raises(PlaygroundError, match="brought back"):
        history.restore(mine, "you")
    history.restore(mine, "me")
    assert history.entry(mine, "me") == before and history.result(mine, "me") == {"a": 1}
    history.delete(mine, "me")
    history.record(mine).write_text("rows")
    now = histories.time.time() + histories.UNDO_S + 1
    monkeypatch.setattr(histories.time, "time", lambda: now)
    with pytest.raises(PlaygroundError, match="10 minutes"):
        history.restore(mine, "me")
    assert not history.record(mine).exists(), "nothing of it is left"


def test_titles_are_whole_and_no_two_are_equal(history):
    again = [history.keep("compare", "mine", {}, owner="me") for _ in range(3)]
    history.keep("compare", "mine", {}, owner="me", name=again[0])  # a repeat replaces what it repeats
    assert sorted(entry.title for entry in history.entries("me")) == ["mine", "mine (2)", "mine (3)"]
    assert history.entry(history.keep("compare", "mine", {}, owner="you"), "you").title == "mine"


EARLIER = """
CREATE TABLE experiments (
    id TEXT PRIMARY KEY, owner TEXT, kind TEXT, title TEXT, status TEXT, created REAL, updated REAL, fraction REAL,
    note TEXT, process TEXT, work TEXT, result TEXT
);
CREATE TABLE deleted AS SELECT *, 0.0 AS gone FROM experiments WHERE 0;
INSERT INTO experiments VALUES ('00000001', '', 'compare', 'mine', 'finished', 1, 1, 1, '', '', 'null', '{"a": 1}');
INSERT INTO experiments VALUES ('00000002', '', 'suite', 'stopped', 'stopped', 2, 2, 0.5, '', '', '{"b": 2}', NULL);
"""


def test_a_database_of_an_earlier_release_is_taken_over_with_what_was_just_deleted(history, tmp_path):
    folder = tmp_path / "earlier"
    folder.mkdir()
    with sqlite3.connect(folder / "history.sqlite") as database:
        database.executescript(EARLIER)
        gone = ("00000003", "", "compare", "gone", "finished", 3, 3, 1, "", "", "null", "{}", time.time())
        database.execute(f"INSERT INTO deleted VALUES ({','.join('?' * 13)})", gone)
    database.close()
    for _ in range(2):  # and it is not done again
        history = History(folder, each_bytes=10)
        assert [entry.id for entry in history.entries()] == ["00000002", "00000001"]
    assert history.result("00000001") == {"a": 1} and history.work("00000002") == {"b": 2}
    history.restore("00000003")
    assert history.entry("00000003").title == "gone"
    history.keep("compare", "new", {"c": 3})
    assert "00000001" not in {entry.id for entry in history.entries()}, "its bytes were counted"


def test_a_look_at_the_history_reads_no_result(history, tmp_path):
    """By the pages that are damaged: those of the result alone."""
    name = history.keep("compare", "mine", {"a": "x" * 1_000_000})
    file = tmp_path / "data" / "history.sqlite"
    data = bytearray(file.read_bytes())
    first = data.index(b"x" * 4000) // 4096 + 1
    for page in range(first + 1, first + 200):
        data[page * 4096 : page * 4096 + 4] = b"\xff" * 4  # which page comes next
    file.write_bytes(data)
    assert [entry.title for entry in history.entries(search="mine")] == ["mine"]
    with pytest.raises(PlaygroundError, match="malformed"):
        history.result(name)


def test_an_entry_of_another_release_says_so(history):
    other = history.keep("suite", "other", {"kind": "suite", "schema_version": 99})
    with pytest.raises(PlaygroundError, match="the release"):
        opened(history, other)


def test_it_is_searched_by_all_words(history):
    history.keep("compare", "Llama with ngram", {})
    history.keep("suite", "Qwen with ngram", {})
    assert [entry.title for entry in history.entries(search="NGRAM suite")] == ["Qwen with ngram"]


def test_what_is_old_goes_with_its_rows(tmp_path, monkeypatch):
    history = History(tmp_path / "data", max_age_s=60)
    name = history.keep("suite", "mine", {})
    history.record(name).write_text("rows")
    assert history.entries()
    monkeypatch.setattr(histories.time, "time", lambda: time.monotonic() + 1e10)
    assert not history.entries() and not history.record(name).exists()


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("PLAYGROUND_HISTORY", "off")
    history = histories.open_history()
    name = history.keep("suite", "mine", {})
    folder = history.record(name).parent
    assert history.entries() and not history.permanent and folder.is_dir()
    del history
    assert not folder.exists()


WAITS = """
import sys
from playground.experiments.history import History

history = History(None)
history.keep("compare", "mine", {"prompt": "SECRET"})
print(history.record("x").parent.parent, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_of_its_visitors_goes_when_the_next_one_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        left = Path(program.stdout.readline().strip())
        one = History(None)
        assert (left / "history.sqlite").exists() and left.stat().st_mode & 0o77 == 0
        program.kill()
    other = History(None)
    assert not left.exists()
    del one, other
    assert not [*tmp_path.iterdir()], "a process that ends leaves nothing"


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaygroundError, match="PLAYGROUND_HISTORY"):
        History(tmp_path / "file" / "data")
