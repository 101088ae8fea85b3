"""The benchmark for GPUs: every part runs on a CPU, and one that fails, hangs or dies ends no other."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import command
from benchmarks.gpu.command import PARTS, run, tables
from benchmarks.gpu.rig import Rig
from playground.errors import PlaygroundError

ROOT = Path(__file__).parents[2]
CPU = Rig(torch.device("cpu"), rehearses=True)
MACHINE = {"device_name": "A GPU", "bandwidth": 4e12, "versions": {"torch": "2.11"}, "created": "2026-11-27T17:00:00"}


@pytest.mark.parametrize("part", [name for name in PARTS if name not in ("where", "containment", "pairs")])
def test_every_part_rehearses_on_a_cpu(part):
    _, work = PARTS[part]
    found: dict[str, dict] = {}
    for title, rows in work(CPU):
        for row, figures in rows.items():
            found.setdefault(title, {}).setdefault(row, {}).update(figures)
    assert found and all(figures for rows in found.values() for figures in rows.values())
    if part == "trust":
        [rows] = found.values()
        assert {figures[kind] for figures in rows.values() for kind in ("greedy", "sampled")} == {"yes"}


def where():
    yield "environment", MACHINE


def fails():
    yield "Times", {"a": {"ms": 1.0}}
    raise RuntimeError("a device-side assert")


def dies():
    yield "Times", {"b": {"ms": 2.0}}
    os._exit(3)


def hangs():
    yield "Times", {"c": {"ms": 3.0}}
    time.sleep(60)


def works():
    yield "Times", {"d": {"ms": 4.0}}
    yield "Times", {"d": {"kernels": 500}}


def test_a_part_that_fails_dies_or_hangs_ends_no_other_and_its_figures_stay(tmp_path, monkeypatch):
    file, said = tmp_path / "gpu.json", []
    hung = lambda: file.exists() and '"c"' in file.read_text()  # noqa: E731
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: 100.0 * hung()))
    parts = {part.__name__: (60, part) for part in (where, fails, dies, hangs, works)}
    failed = run(parts, 1000, file, said.append)
    assert [name for name in failed] == ["fails", "dies", "hangs"]
    assert "device-side assert" in failed["fails"] and failed["dies"] == "ended with 3" and "cut off" in failed["hangs"]
    kept = json.loads(file.read_text())
    assert kept["environment"] == MACHINE and kept["failed"] == failed and len(said) == 5
    assert kept["tables"] == {
        "Times": {"a": {"ms": 1.0}, "b": {"ms": 2.0}, "c": {"ms": 3.0}, "d": {"ms": 4.0, "kernels": 500}}
    }
    assert "| Times | ms | kernels |\n|---|--:|--:|\n| a | 1.00 |  |" in tables(kept)
    assert tables(kept).startswith("A GPU, 4,000 GB/s; torch 2.11; 2026-11-27\n")


def test_parts_that_the_time_is_too_short_for_are_left_out(tmp_path, monkeypatch):
    ended: list[str] = []
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: 56.0 * len(ended)))
    failed = run({"where": (60, where), "works": (60, works)}, 60, tmp_path / "gpu.json", ended.append)
    assert failed.keys() == {"works"} and "left out" in failed["works"]


def test_without_a_device_nothing_else_is_tried(tmp_path):
    with pytest.raises(PlaygroundError, match="RuntimeError: a device-side"):
        run({"where": (60, fails), "works": (60, works)}, 100, tmp_path / "gpu.json", lambda line: None)


@pytest.mark.parametrize("path", sorted((ROOT / "assets" / "results").glob("h200-*")), ids=lambda path: path.stem)
def test_the_tables_of_a_published_file(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    text = tables(result)
    assert "NVIDIA H200" in text
    for title, rows in result["tables"].items():
        assert f"| {title} |" in text and all(f"| {row} |" in text for row in rows)
