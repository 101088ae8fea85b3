"""`lossless` and `recommend` in the terminal, on a tiny model."""

from __future__ import annotations

import json
import re

import pytest

from playground.commands import main


def asked(folder, tmp_path, tokens="8"):
    (tmp_path / "mine.txt").write_text("waves and waves and")
    return ["--target", str(folder), "--drafters", "ngram", "--dtype", "float32", "--max-new-tokens", tokens, "--suite",
            str(tmp_path / "mine.txt")]  # fmt: skip


def exported(name, tmp_path, column):
    """The history's entry can be had as a spreadsheet with this column and as a page."""
    for form in ("csv", "html"):
        main(["history", "export", name, str(tmp_path / f"out.{form}")])
    assert column in (tmp_path / "out.csv").read_text().splitlines()[0]
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_lossless_ends_with_0_and_with_1_where_a_lane_is_lossy(tiny_folder, tmp_path, capsys):
    command = ["lossless", *asked(tiny_folder, tmp_path, "40"), "--draws", "40"]
    main(command)
    printed = capsys.readouterr().out
    assert re.search(r"^Prompt lookup \(5 ahead\) +pass +1 of 1 ", printed, re.MULTILINE)
    assert "All 1 greedy" in printed
    with pytest.raises(SystemExit) as ended:
        main([*command, "--rule", "top-2", "--json", "-"])
    assert ended.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert [check["lane"] for check in data["checks"]][-1] == "ngram 5, lossy: top-2"
    main(["history"])
    name = re.search(r"^(\w+) .*lossless", capsys.readouterr().out, re.MULTILINE)[1]
    main(["history", "show", name])
    assert "instead of" in capsys.readouterr().out
    main(["history", "compare", name, name])
    assert re.search(r"top-2\) +FAIL\b.* FAIL\b", capsys.readouterr().out)
    exported(name, tmp_path, "greedy outputs identical")


def test_recommend_prints_one_setting_and_writes_its_result(tiny_folder, tmp_path, capsys):
    out = tmp_path / "out.json"
    main(["recommend", *asked(tiny_folder, tmp_path), "--json", str(out)])
    printed = capsys.readouterr().out
    assert "\nFor these " in printed and re.search(r"Prompt lookup \(8 ahead\) +refined ", printed)
    data = json.loads(out.read_text())
    assert (data["kind"], len(data["refined"]["lanes"])) == ("recommend", 3)
    main(["history", "list", "--json"])
    exported(json.loads(capsys.readouterr().out)[0]["id"], tmp_path, "stage,question")
