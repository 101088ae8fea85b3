"""A record holds what its result holds, its sums are checked, and a stranger's words stay words."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from playground import __version__
from playground.commands import main
from playground.errors import PlaygroundError
from playground.experiments.suite import of_comparison
from playground.lane import label
from playground.presets import SHIPPED
from playground.results import STANDARD, SuiteResult, record, to_json
from playground.trace import Comparison
from playground.views import records, report
from tests.ui import fakes

RUN = fakes.comparison(tokens=12)


def suite() -> SuiteResult:
    return of_comparison(replace(RUN, repeats=(RUN.lanes, RUN.lanes)))


def test_a_record_is_read_as_it_was_written_and_holds_no_prompt():
    made = record.of(suite(), suite="mine")
    assert record.read(record.text(made)) == made
    lane, base = made.lanes[0], made.baseline
    assert lane.speedup == pytest.approx(base.seconds / base.tokens * lane.times.tokens / lane.times.seconds)
    assert made.runs == 3 and lane.counts.positions and sum(it.accepted for it in lane.counts.positions) > 0
    asked = RUN.standard.request.prompt
    assert asked not in record.text(made) and asked in record.text(record.of(suite(), prompts=True))
    written = {"system": "be a pirate", "stop_strings": "my secret", "regex": "a+", "template": "who=me"}
    texts = record.text(record.of(replace(suite(), request=replace(suite().request, **written))))
    assert not any(words in texts for words in written.values())


WRONG = {
    "speedup": (lambda lane: lane.update(speedup=9.0, interval=None), "times make"),
    "interval": (lambda lane: lane.update(interval=[90, 91]), "does not hold the speed-up"),
    "position": (lambda lane: lane["counts"]["positions"][0].update(accepted=99), "positions add up"),
    "accepted": (lambda lane: lane["counts"].update(accepted=99), "drafted"),
    "tokens": (lambda lane: lane["counts"].update(passes=0), "do not make"),
    "identical": (lambda lane: lane.update(identical=2), "2 outputs are identical, of 1"),
    "times": (lambda lane: lane.pop("times"), "needs times"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sum_is_refused_in_a_sentence(name):
    edit, said = WRONG[name]
    data = json.loads(record.text(record.of(suite())))
    edit(data["lanes"][0])
    with pytest.raises(PlaygroundError, match=said):
        record.read(json.dumps(data), "x.json")


def test_a_lossy_lane_makes_no_record():
    found = suite()
    lossy = replace(found.lanes[0], name="lossy", rule="typical")
    with pytest.raises(PlaygroundError, match="is not exact"):
        record.of(replace(found, lanes=(lossy,)))


def test_a_server_is_named_without_its_address_and_a_folder_without_its_path():
    found = suite()
    lane = replace(found.lanes[0], name="vLLM: ngram", target="/home/me/model", backend="vLLM at http://10.0.0.1:8000")
    rows = tuple(replace(it, lane="vLLM: ngram") if it.lane != STANDARD else it for it in found.rows)
    there = {"device": None, "device_name": "vLLM at http://10.0.0.1:8000"}
    where = replace(found.environment, **there, weights=(f"model in {there['device_name']}",))
    result = replace(found, lanes=(lane,), rows=rows, environment=where)
    made = record.of(result)
    assert (made.engine, made.target, made.weights, made.hardware) == ("vLLM", "model", "model", "unknown")
    assert record.of(result, hardware="two cores").hardware == "two cores"
    assert "10.0.0.1" not in record.text(made) and "/home" not in record.text(made)


def test_a_shipped_drafter_of_this_release_has_the_hash_of_its_weights():
    found = suite()
    lane = replace(found.lanes[0], drafter="mtp", assistant="starter-mtp")
    rows = tuple(replace(it, lane=label(lane)) if it.lane != STANDARD else it for it in found.rows)
    now = replace(found.environment, versions={"playground": __version__})
    of = replace(found, lanes=(lane,), rows=rows, environment=now)
    known = hashlib.sha256((SHIPPED / "starter-mtp" / "weights.safetensors.gz").read_bytes()).hexdigest()
    assert known.startswith(record.of(of).lanes[0].weights)
    assert record.of(replace(of, environment=found.environment)).lanes[0].weights is None


def test_every_shipped_record_is_valid_and_published_ones_name_their_source():
    found = record.load()
    assert len(found) > 10
    assert {it.source for it in found.values()} == {"measured", "published"}
    assert all(it.url and not it.baseline for it in found.values() if it.source == "published")


def test_the_terminal_compares_a_record_with_its_run_where_that_is_here(tmp_path, capsys):
    for name, it in record.load().items():
        if it.source == "measured":
            main(["record", "check", str(record.RECORDS / f"{name}.json")])
            assert ("those of its run" in capsys.readouterr().out) == it.here
    data = json.loads((record.RECORDS / "starter-cpu-2-cores-xeon.json").read_text())
    first = data["lanes"][0]
    first["times"]["seconds"] *= 2  # and the rest in proportion, so that the sums agree
    first |= {"speedup": first["speedup"] / 2, "interval": [end / 2 for end in first["interval"]]}
    false = tmp_path / "false.json"
    false.write_text(json.dumps(data))
    with pytest.raises(SystemExit):
        main(["record", "check", str(false)])
    assert "lanes are not those of its run" in capsys.readouterr().err


def test_a_row_opens_the_run_behind_it_which_says_the_same(monkeypatch):
    found = record.load()
    kept = {name: it for name, it in found.items() if it.run}
    assert len(kept) > 10 and all(it.here for it in kept.values())
    for it in kept.values():
        run = record.run_of(it)
        made = record.of(of_comparison(run) if isinstance(run, Comparison) else run)
        assert [(lane.drafter, lane.speedup) for lane in made.lanes] == [(it.drafter, it.speedup) for it in it.lanes]
        assert report.of(run).findings
    shown = records.html(found, [*kept])
    assert shown.count("records?run=") == sum(len(it.lanes) for it in kept.values())
    assert "was not kept" not in shown and "in the repository" in records.page(found)
    lost = replace(found["starter-cpu-2-cores-xeon"], run="")
    assert "was not kept" in records.html({"lost": lost}, [])
    monkeypatch.setattr(record, "ROOT", SHIPPED)  # as in a wheel, which holds no results
    assert record.run_of(next(iter(kept.values()))) is None
    with pytest.raises(PlaygroundError, match="below assets"):
        replace(found["starter-cpu-2-cores-xeon"], run="assets/../../secret.json")


def test_the_terminal_makes_checks_and_submits(tmp_path, monkeypatch, capsys):
    result, made = tmp_path / "suite.json", tmp_path / "My Run.json"
    result.write_text(json.dumps(to_json(suite())))
    main(["record", "make", str(result), "-o", str(made), "--note", "a busy *machine*"])
    main(["record", "check", str(made)])
    assert "the sums agree" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["record", "submit", str(made)])
    assert "There is no folder records/ here" in capsys.readouterr().err
    (tmp_path / "records").mkdir()
    main(["record", "submit", str(made)])
    assert (tmp_path / "records" / "my-run.json").read_bytes() == made.read_bytes()
    printed = capsys.readouterr().out
    assert "Record: " in printed and "| target |" in printed and r"a busy \*machine\*" in printed
    with pytest.raises(SystemExit):
        main(["record", "submit", str(made)])
    assert "is there already" in capsys.readouterr().err
    page = tmp_path / "records.html"
    main(["record", "page", "--html", str(page), "--folder", str(tmp_path / "records")])
    assert "records/my-run.json" in page.read_text()


def test_on_a_space_a_record_becomes_a_pull_request_of_a_dataset(tmp_path, monkeypatch, capsys):
    made, asked = tmp_path / "run.json", {}
    made.write_text(record.text(record.of(suite())))

    def upload(self, **given):
        asked.update(given)
        return SimpleNamespace(pr_url="https://huggingface.co/datasets/me/records/discussions/1")

    monkeypatch.setattr("huggingface_hub.HfApi.upload_file", upload)
    monkeypatch.setenv("PLAYGROUND_RECORDS", "me/records")
    main(["record", "submit", str(made)])
    assert asked["repo_id"] == "me/records" and asked["repo_type"] == "dataset" and asked["create_pr"]
    assert asked["path_in_repo"] == "records/run.json"
    assert record.read(asked["path_or_fileobj"]) == record.read(made.read_bytes())
    assert "discussions/1" in capsys.readouterr().out

    def refuse(self, **given):
        raise OSError("no token")

    monkeypatch.setattr("huggingface_hub.HfApi.upload_file", refuse)
    with pytest.raises(SystemExit):
        main(["record", "submit", str(made)])
    assert "did not take the record (no token)" in capsys.readouterr().err


def test_words_of_strangers_are_escaped():
    bad = "<img src=x onerror=alert(1)>"
    made = record.of(suite())
    lane = replace(made.lanes[0], name=bad)
    shown = records.html({bad: replace(made, target=bad, hardware=bad, suite=bad, note=bad, engine=bad, lanes=(lane,))})
    assert "<img" not in shown and "&lt;img" in shown
    with pytest.raises(PlaygroundError, match="https://"):
        replace(made, url="javascript:alert(1)")
